package integration

import (
	"fmt"
	"math/rand/v2"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// generator makes SidecarSets of which about half are valid: each value that it
// chooses is wrong now and then.
type generator struct{ *rand.Rand }

type (
	object = map[string]any
	list   = []any
)

// sidecarSet uses every member of a container and the common kinds of volume.
// What depends on the Pod's other fields is left out: stopSignal needs spec.os,
// procMount Unmasked needs hostUsers, resourcesPolicy needs resources.
func (g generator) sidecarSet() object {
	spec := object{
		"selector":       object{"matchLabels": object{"app": "web"}},
		"updateStrategy": object{"type": "NotUpdate"},
	}
	names := []string{"va", "vb", "vc", "vd"}
	var volumes, containers, inits list
	for _, name := range names {
		volumes = append(volumes, g.volume(name))
	}
	spec["volumes"] = volumes
	for i := range 1 + g.IntN(2) {
		containers = append(containers, g.container(fmt.Sprint("c", i), volumes))
	}
	for i := range g.IntN(3) {
		inits = append(inits, g.initContainer(fmt.Sprint("i", i), volumes))
	}
	spec["containers"], spec["initContainers"] = containers, inits
	if g.maybe(4) {
		spec["imagePullSecrets"] = list{object{"name": "pull"}}
	}
	return object{
		"apiVersion": appsv1beta1.GroupVersion.String(), "kind": "SidecarSet",
		"metadata": object{"name": "random"}, "spec": spec,
	}
}

// maybe is true in one of n cases.
func (g generator) maybe(n int) bool { return g.IntN(n) == 0 }

// of chooses one of the good values, or rarely one of the bad ones.
func (g generator) of(good, bad list) any {
	if len(bad) > 0 && g.maybe(40) {
		return bad[g.IntN(len(bad))]
	}
	return good[g.IntN(len(good))]
}

// set sets a member in one of n cases.
func (g generator) set(o object, n int, name string, good, bad list) {
	if g.maybe(n) {
		o[name] = g.of(good, bad)
	}
}

func (g generator) container(name string, volumes list) object {
	c := g.anyContainer(name, volumes)
	g.set(c, 30, "restartPolicy", list{nil}, list{"Always", "Never"})
	g.set(c, 4, "podInjectPolicy", list{"BeforeAppContainer", "AfterAppContainer"}, list{"First"})
	g.probes(c, 1)
	if g.maybe(5) {
		c["shareVolumePolicy"] = object{"type": g.of(list{"enabled", "disabled"}, list{"on"})}
	}
	if g.maybe(5) {
		c["transferEnv"] = list{object{"sourceContainerName": "app", "envName": g.of(list{"A", "NONE"}, nil)}}
	}
	if g.maybe(6) {
		c["upgradeStrategy"] = object{"upgradeType": "HotUpgrade", "hotUpgradeEmptyImage": g.of(list{"example.com/empty:v1"}, list{"", " x"})}
	}
	return c
}

func (g generator) initContainer(name string, volumes list) object {
	c := g.anyContainer(name, volumes)
	native := g.maybe(2)
	if native {
		c["restartPolicy"] = "Always"
	} else {
		g.set(c, 20, "restartPolicy", list{nil}, list{"OnFailure", "Never"})
	}
	if native || g.maybe(20) {
		g.probes(c, 1)
	}
	return c
}

func (g generator) anyContainer(name string, volumes list) object {
	c := object{
		"name":  g.of(list{name}, list{"", "A", "app2-", "c0"}),
		"image": g.of(list{"example.com/x:v1", "x", "x:latest"}, list{"", " x"}),
	}
	g.set(c, 3, "imagePullPolicy", list{"Always", "IfNotPresent", "Never"}, list{"Sometimes"})
	g.set(c, 3, "terminationMessagePolicy", list{"File", "FallbackToLogsOnError"}, list{"Out"})
	g.set(c, 4, "tty", list{true, false}, nil)
	g.set(c, 4, "stdinOnce", list{true}, nil)
	g.set(c, 4, "workingDir", list{"/x", "x"}, nil)
	g.set(c, 4, "command", list{list{"x"}, list{""}, list{}}, nil)
	for i := range g.IntN(3) {
		c["ports"] = add(c["ports"], g.port(i))
	}
	for i := range g.IntN(3) {
		c["env"] = add(c["env"], g.env(fmt.Sprint("E", i)))
	}
	if g.maybe(3) {
		c["envFrom"] = list{g.envFrom()}
	}
	if g.maybe(2) {
		c["resources"] = g.resources()
	}
	if g.maybe(6) {
		c["resizePolicy"] = list{object{"resourceName": g.of(list{"cpu", "memory"}, list{"gpu", ""}), "restartPolicy": g.of(list{"NotRequired"}, list{"RestartContainer", "", "x"})}}
	}
	g.mounts(c, volumes)
	if g.maybe(2) {
		c["securityContext"] = g.securityContext()
	}
	return c
}

func add(to any, elem any) list {
	elems, _ := to.(list)
	return append(elems, elem)
}

func (g generator) port(i int) object {
	p := object{"containerPort": g.of(list{80 + i, 65535 - i}, list{0, -1, 65536})}
	g.set(p, 2, "name", list{fmt.Sprint("web", i)}, list{"Web", "a--b", "80", "-a", "name-of-16-chars", "web0"})
	g.set(p, 3, "protocol", list{"TCP", "UDP", "SCTP"}, list{"ICMP"})
	g.set(p, 6, "hostPort", list{9000 + g.IntN(1000)}, list{65536, -1, 9000})
	g.set(p, 8, "hostIP", list{"127.0.0.1", "::1"}, nil)
	return p
}

func (g generator) env(name string) object {
	e := object{"name": g.of(list{name, "with.dot", "with-dash", "1digit", "space in it"}, list{"", "a=b", "ä"})}
	if g.maybe(2) {
		e["value"] = g.of(list{"", "x", "$(A)"}, nil)
		return e
	}
	e["valueFrom"] = g.of(list{
		g.fieldRef("metadata.name", "metadata.uid", "spec.nodeName", "status.hostIPs", "metadata.labels['a']", "metadata.annotations['B/c']", "spec.host"),
		object{"resourceFieldRef": object{"resource": g.of(list{"limits.cpu", "requests.memory", "limits.ephemeral-storage", "limits.hugepages-2Mi"}, list{"", "cpu", "limits.gpu"})}},
		object{"resourceFieldRef": object{"resource": "limits.memory", "divisor": g.of(list{"1Mi", "1", "1k", "0"}, list{"2Mi", "1m", "-1"}), "containerName": g.of(list{"app"}, nil)}},
		object{"secretKeyRef": object{"name": g.of(list{"s", "s.t"}, list{"", "S", "a/b"}), "key": g.of(list{"k", "K_.-"}, list{"", "a b", "..", "."})}},
		object{"configMapKeyRef": object{"name": g.of(list{"s"}, list{"", "S"}), "key": g.of(list{"k"}, list{"", "a/b"}), "optional": true}},
	}, list{
		object{}, g.fieldRef("status.phase"), g.fieldRef("metadata.labels"), g.fieldRef("metadata.labels['a b']"), g.fieldRef("metadata.annotations['']"), g.fieldRef("spec['a']"), g.fieldRef(""),
		object{"fieldRef": object{"fieldPath": "metadata.name"}, "secretKeyRef": object{"name": "s", "key": "k"}},
		object{"fieldRef": object{"apiVersion": "v2", "fieldPath": "metadata.name"}},
	})
	if g.maybe(60) {
		e["value"] = "x"
	}
	return e
}

func (g generator) fieldRef(paths ...string) object {
	return object{"fieldRef": object{"fieldPath": paths[g.IntN(len(paths))]}}
}

func (g generator) envFrom() any {
	source := g.of(list{
		object{"configMapRef": object{"name": g.of(list{"c"}, list{"", "C"})}},
		object{"secretRef": object{"name": g.of(list{"c"}, list{"", "C_"}), "optional": true}},
	}, list{object{}, object{"configMapRef": object{"name": "c"}, "secretRef": object{"name": "c"}}}).(object)
	g.set(source, 3, "prefix", list{"P_", "p.", "1"}, list{"a=", "="})
	return source
}

func (g generator) resources() object {
	r := object{}
	if g.maybe(2) {
		r["limits"] = g.of(list{object{"cpu": "1", "memory": "1Gi"}, object{"cpu": 2, "example.com/gpu": 1}, object{"cpu": "1", "hugepages-2Mi": "4Mi"}, object{"ephemeral-storage": "1Gi"}, object{"memory": "1500m"}},
			list{object{"cpu": "-1"}, object{"gpu": "1"}, object{"example.com/gpu": "0.5"}, object{"hugepages-2Mi": "2Mi"}, object{"cpu": "1", "hugepages-2Mi": "3Mi"}, object{"storage": "1Gi"}, object{"requests.example.com/x": 1}, object{"kubernetes.io/x": 1}, object{"a b": 1}, object{"pods": 1}, object{"cpu": 1, "hugepages-x": 1}, object{"a/b/c": 1}})
	}
	if g.maybe(2) {
		r["requests"] = g.of(list{object{"cpu": "100m"}, object{"memory": "1Mi"}, object{"cpu": "0"}, object{"ephemeral-storage": "1Mi"}},
			list{object{"cpu": "8"}, object{"example.com/gpu": 1}, object{"memory": "-1"}, object{"hugepages-2Mi": "4Mi"}, object{"example.com/gpu": 2}})
	}
	if g.maybe(60) {
		r["claims"] = list{object{"name": "gpu"}}
	}
	return r
}

func (g generator) mounts(c object, volumes list) {
	for i := range g.IntN(4) {
		v := volumes[g.IntN(len(volumes))].(object)
		m := object{"name": g.of(list{v["name"]}, list{"none", ""}), "mountPath": g.of(list{fmt.Sprint("/m", i), fmt.Sprint("rel", i), fmt.Sprint("/a/../m", i)}, list{"", "/m0", "/d0"})}
		g.set(m, 5, "readOnly", list{true}, nil)
		g.set(m, 6, "subPath", list{"a", "a/b", "a..b", "..a"}, list{"/a", "a/../b", ".."})
		g.set(m, 8, "subPathExpr", list{"$(A)", "a/$(A)"}, list{"/a", "../a"})
		g.set(m, 8, "mountPropagation", list{"None", "HostToContainer"}, list{"Bidirectional", "x"})
		g.set(m, 12, "recursiveReadOnly", list{"Disabled"}, list{"Enabled", "IfPossible", "x"})
		c["volumeMounts"] = add(c["volumeMounts"], m)
	}
	for _, v := range volumes {
		if v := v.(object); v["persistentVolumeClaim"] != nil && g.maybe(3) || g.maybe(60) {
			c["volumeDevices"] = add(c["volumeDevices"], object{"name": v["name"], "devicePath": g.of(list{fmt.Sprint("/d", v["name"])}, list{"", "/m0", "/a/../b", "/d0"})})
		}
	}
}

func (g generator) probes(c object, successes int) {
	for _, name := range []string{"livenessProbe", "readinessProbe", "startupProbe"} {
		if !g.maybe(4) {
			continue
		}
		p := g.handler(object{"grpc": object{"port": g.of(list{1}, list{0, 65536})}})
		for _, number := range []string{"initialDelaySeconds", "timeoutSeconds", "periodSeconds", "failureThreshold"} {
			g.set(p, 4, number, list{0, 1, 30}, list{-1})
		}
		g.set(p, 4, "successThreshold", list{0, successes}, list{2, -1})
		g.set(p, 12, "terminationGracePeriodSeconds", list{1}, list{0, -1})
		c[name] = p
	}
	if g.maybe(4) {
		c["lifecycle"] = object{"preStop": g.handler(object{"sleep": object{"seconds": g.of(list{1, 0}, list{-1})}}), "postStart": g.handler(nil)}
	}
}

func (g generator) handler(more object) object {
	kinds := list{
		object{"exec": object{"command": g.of(list{list{"x"}}, list{list{}, nil})}},
		object{"httpGet": object{"port": g.of(list{80, "web"}, list{0, "Web", "", 70000, "a--b"}), "path": g.of(list{"/", "x", ""}, nil), "scheme": g.of(list{"HTTP", "HTTPS", ""}, list{"ftp", "http"}), "httpHeaders": list{object{"name": g.of(list{"X-A", "a"}, list{"", "a b"}), "value": "v"}}}},
		object{"tcpSocket": object{"port": g.of(list{80, "web"}, list{0, "80"}), "host": "h"}},
	}
	if more != nil {
		kinds = append(kinds, more)
	}
	return g.of(kinds, list{object{}, object{"exec": object{"command": list{"x"}}, "tcpSocket": object{"port": 1}}}).(object)
}

func (g generator) securityContext() object {
	sc := object{}
	g.set(sc, 4, "runAsUser", list{0, 1000}, list{-1, 1 << 40})
	g.set(sc, 4, "runAsGroup", list{0, 1000}, list{-1})
	g.set(sc, 4, "runAsNonRoot", list{true, false}, nil)
	g.set(sc, 4, "allowPrivilegeEscalation", list{false, true}, nil)
	g.set(sc, 8, "privileged", list{false}, list{true})
	g.set(sc, 4, "capabilities", list{object{"drop": list{"ALL"}}, object{"add": list{"NET_ADMIN"}}}, list{object{"add": list{"CAP_SYS_ADMIN"}}})
	g.set(sc, 4, "seccompProfile", list{object{"type": "RuntimeDefault"}, object{"type": "Localhost", "localhostProfile": "a/b"}}, list{object{}, object{"type": "Localhost"}, object{"type": "x"}, object{"type": "Unconfined", "localhostProfile": "a"}, object{"type": "Localhost", "localhostProfile": "../a"}})
	g.set(sc, 4, "appArmorProfile", list{object{"type": "Unconfined"}, object{"type": "Localhost", "localhostProfile": "a"}}, list{object{}, object{"type": "Localhost"}, object{"type": "x"}, object{"type": "Localhost", "localhostProfile": " "}})
	g.set(sc, 8, "procMount", list{"Default"}, list{"x"})
	return sc
}
