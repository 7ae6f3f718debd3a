package inject_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

// shape is a Pod and a SidecarSet whose size is proportional to n: what the creator of a Pod or of a
// SidecarSet, or an unauthenticated client with a made-up review, chooses.
type shape struct {
	name string
	n    int
	of   func(n int) (*fixtures.SidecarSetBuilder, inject.PodView)
}

func many(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = strings.ReplaceAll(format, "#", fmt.Sprint(i))
	}
	return strings.Join(parts, ",")
}

// shapes are within the bounds of API servers. The first three took seconds.
var shapes = []shape{
	{"names in spec.resources, and containers", 50_000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		pod := containersOf(n/100, `{"requests":{"x":1},"limits":{"y":1}}`)
		pod.Spec.Resources = []byte(`{"requests":{` + many(n, `"n#":1`) + `}}`)
		return log().With("resources", map[string]any{"requests": map[string]any{"x": 1}}), pod
	}},
	{"a copied variable of references that never end", 300_000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("transferEnv", transferOf("app", "A")), onePod(inject.ContainerView{Env: []byte(`[{"name":"A","value":"` + strings.Repeat("$(", n) + `"}]`)})
	}},
	{"a shared subPathExpr of references that never end", 300_000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("shareVolumePolicy", enabled), onePod(inject.ContainerView{VolumeMounts: []byte(`[{"name":"v","mountPath":"/v","subPathExpr":"` + strings.Repeat("$(", n) + `"}]`)})
	}},
	{"a shared subPathExpr of references", 100_000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("shareVolumePolicy", enabled), onePod(inject.ContainerView{VolumeMounts: []byte(`[{"name":"v","mountPath":"/v","subPathExpr":"` + strings.Repeat("$(A)", n) + `"}]`)})
	}},
	{"variables copied from variables", 4000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		names := make([]any, n)
		for i := range names {
			names[i] = fmt.Sprint("V", i)
		}
		return log().With("transferEnv", transferOf("app", names...)), onePod(inject.ContainerView{Env: []byte("[" + many(n, `{"name":"V#","value":"$(V#)"}`) + "]")})
	}},
	{"variables that are missing", 4000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		names := make([]any, n)
		for i := range names {
			names[i] = fmt.Sprint("W", i)
		}
		return log().With("transferEnv", transferOf("app", names...)), onePod(inject.ContainerView{Env: []byte("[" + many(n, `{"name":"V#","value":"x"}`) + "]")})
	}},
	{"mounts that are shared", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("shareVolumePolicy", enabled), onePod(inject.ContainerView{VolumeMounts: []byte("[" + many(n, `{"name":"v#","mountPath":"/v#"}`) + "]")})
	}},
	{"mounts at one path", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("shareVolumePolicy", enabled), onePod(inject.ContainerView{VolumeMounts: []byte("[" + many(n, `{"name":"v#","mountPath":"/v"}`) + "]")})
	}},
	{"devices that are shared", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("shareVolumeDevicePolicy", enabled), onePod(inject.ContainerView{VolumeDevices: []byte("[" + many(n, `{"name":"v#","devicePath":"/v#"}`) + "]")})
	}},
	{"ports of the node", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		pod := onePod(inject.ContainerView{Ports: []byte("[" + many(n, `{"containerPort":#}`) + "]")})
		pod.Spec.HostNetwork = true
		return log().With("ports", []any{map[string]any{"containerPort": 60000}}), pod
	}},
	{"names of ports", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("ports", nodePort(60000)), onePod(inject.ContainerView{Ports: []byte("[" + many(n, `{"name":"p#","containerPort":#}`) + "]")})
	}},
	{"containers that a policy computes from", 400, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		return log().With("resourcesPolicy", map[string]any{"targetContainersMode": "sum", "targetContainersNameRegex": "c.*", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": "cpu/2"}}}),
			containersOf(n, `{"limits":{"cpu":"1"}}`)
	}},
	{"volumes of both", 400, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		set, pod := log(), onePod(inject.ContainerView{})
		for i := range n {
			name := fmt.Sprint("v", i)
			set.Volume(name).Mount(name, "/"+name)
			pod.Volumes = append(pod.Volumes, inject.VolumeView{Name: "w" + name, Body: []byte(`{"name":"w` + name + `"}`)})
		}
		return set, pod
	}},
	{"sidecars and containers", 400, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		set := log()
		for i := range n {
			set.Container(fmt.Sprint("s", i), "i").With("ports", []any{map[string]any{"containerPort": 1 + i, "name": fmt.Sprint("s", i)}})
		}
		return set, containersOf(n, `{}`)
	}},
	{"a selector of the Pods that get a recorded revision", 300, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		values := make([]any, n)
		for i := range values {
			values[i] = fmt.Sprint("v", i)
		}
		pod := onePod(inject.ContainerView{})
		for i := range n {
			pod.Labels[fmt.Sprint("l", i)] = "x"
		}
		return log().Spec("injectionStrategy", map[string]any{"revision": map[string]any{"revisionName": "r", "policy": "Partial"}}).
			Spec("updateStrategy", map[string]any{"selector": map[string]any{"matchExpressions": []any{map[string]any{"key": "app", "operator": "NotIn", "values": values}}}}), pod
	}},
	{"an expression", 100, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		text := strings.Repeat("max(cpu,", n/2) + "cpu" + strings.Repeat(")", n/2)
		return log().With("resourcesPolicy", map[string]any{"targetContainersMode": "sum", "targetContainersNameRegex": ".*", "resourcesExpr": map[string]any{"limits": map[string]any{"cpu": text}}}),
			containersOf(1, `{"limits":{"cpu":"1"}}`)
	}},
	{"a merged annotation", 5000, func(n int) (*fixtures.SidecarSetBuilder, inject.PodView) {
		pod := onePod(inject.ContainerView{})
		pod.Annotations = map[string]string{"a": "{" + many(n, `"k#":1`) + "}"}
		return log().PatchAnnotation("MergePatchJson", "a", `{"x":1}`), pod
	}},
}

func onePod(app inject.ContainerView) inject.PodView {
	app.Name = "app"
	return inject.PodView{Labels: map[string]string{"app": "web"}, Containers: []inject.ContainerView{app}}
}

func containersOf(n int, resources string) (pod inject.PodView) {
	pod.Labels = map[string]string{"app": "web"}
	for i := range n {
		c := inject.ContainerView{Name: fmt.Sprint("c", i), Image: "i", Resources: []byte(resources)}
		pod.Containers = append(pod.Containers, c)
		c.Name = fmt.Sprint("i", i)
		pod.InitContainers = append(pod.InitContainers, c)
	}
	return pod
}

// Each shape is injected or refused by a rule in no time, since the work of the engine is proportional to
// the size of its input. The plan ends if nobody waits for it.
func TestShapes(t *testing.T) {
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			set, pod := s.of(s.n)
			in := inject.Input{Pod: pod, Candidates: []inject.Candidate{{Current: fixtures.Compiled(t, set.Map())}}, Now: fixtures.Now}
			if _, err := inject.Compute(in); err != nil {
				if _, isRefusal := errors.AsType[inject.Refusal](err); !isRefusal {
					t.Errorf("Compute: %v", err)
				}
			}
			ended := errors.New("nobody waits")
			in.Ended = func() error { return ended }
			if _, err := inject.Compute(in); !errors.Is(err, ended) {
				t.Errorf("after the end of the call: %v", err)
			}
		})
	}
}
