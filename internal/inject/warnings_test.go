package inject_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
)

func variable(name string, source ...any) map[string]any {
	v := map[string]any{"name": name}
	switch {
	case len(source) == 2:
		v["valueFrom"] = map[string]any{source[0].(string): source[1]}
	case len(source) == 1:
		v["value"] = source[0]
	}
	return v
}

func mount(volume, path string, rest ...string) map[string]any {
	m := map[string]any{"name": volume, "mountPath": path}
	for i := 0; i+1 < len(rest); i += 2 {
		m[rest[i]] = rest[i+1]
	}
	return m
}

func port(name string, number int, protocol string) []any {
	return []any{map[string]any{"name": name, "containerPort": number, "protocol": protocol}}
}

func volumes(pod *fixtures.PodBuilder, list ...any) map[string]any {
	object := pod.Obj()
	object["spec"].(map[string]any)["volumes"] = list
	return object
}

// What a SidecarSet asks for and a Pod does not get is told, once for a SidecarSet and a kind.
// What it gets, or does not ask for, is not.
func TestWarnings(t *testing.T) {
	envFrom := []any{map[string]any{"configMapRef": map[string]any{"name": "c"}}}
	web := func() *fixtures.PodBuilder { return fixtures.Pod("web").Container("app", "app:v1") }
	copies := func(names ...any) *fixtures.SidecarSetBuilder {
		return one().With("transferEnv", transferOf("app", names...))
	}
	env := func(list ...any) map[string]any { return web().With("env", list).Obj() }
	config := func(name string) map[string]any { return map[string]any{"name": name} }
	hostPath := func(path string) map[string]any { return map[string]any{"path": path} }
	none := []string(nil)
	tests := map[string]struct {
		pod  map[string]any
		sets []*fixtures.SidecarSetBuilder
		want []string // parts of "SidecarSet kind: text"
	}{
		// transferEnv
		"all is copied":       {env(variable("A", "1")), sets(copies("A")), none},
		"a missing variable":  {env(variable("A", "1")), sets(copies("A", "B")), []string{`s TransferEnv: container "c" does not get variable "B": container "app" does not have it in env. Remedy`}},
		"one from envFrom":    {web().With("envFrom", envFrom).Obj(), sets(copies("B")), []string{"what it has from envFrom is not copied"}},
		"many missing":        {env(), sets(copies("A", "B", "C", "D", "E")), []string{`"C"*; and 2 more. Remedy`}},
		"a missing container": {web().Obj(), sets(one().With("transferEnv", transferOf("main", "A", "B"))), []string{`TransferEnv: container "c" does not get variable "A" of container "main", which the Pod does not have; container "c" does not get variable "B" of`}},
		"an init container":   {web().InitContainer("proxy", "p:1").Env("A", "1").Obj(), sets(one().With("transferEnv", transferOf("proxy", "A"))), []string{"among the Pod's initContainers"}},
		"a sidecar":           {web().Obj(), sets(one().With("transferEnv", transferOf("c", "A"))), []string{"because a SidecarSet brings it"}},
		"a missing label": {web().Obj(), sets(one().With("transferEnv", []any{map[string]any{"envName": "A", "sourceContainerNameFrom": map[string]any{
			"fieldRef": map[string]any{"fieldPath": "metadata.labels['main']"}}}})), []string{`label "main" names, because the Pod does not have that label`}},
		"found in the second container": {env(variable("A", "1")), sets(one().With("transferEnv", append(transferOf("main", "A"), transferOf("app", "A")...))), none},
		"a hot-upgrade pair is one":     {web().Obj(), sets(copies("A").With("upgradeStrategy", hot)), []string{`TransferEnv: container "c-1" does not get variable "A": container "app" does not have it in env. Remedy`}},

		// volumes
		"the Pod's volume for a placeholder": {volumes(web(), map[string]any{"name": "v", "hostPath": hostPath("/a")}), sets(one().Mount("v", "/v").Volume("v")), none},
		"the Pod's volume of another kind":   {volumes(web(), map[string]any{"name": "v", "emptyDir": map[string]any{}}), sets(one().Mount("v", "/v").VolumeOf("v", "configMap", config("c"))), []string{`Volume: the Pod has another volume "v" of its own. Remedy`}},
		"of the same kind":                   {volumes(web(), map[string]any{"name": "v", "configMap": map[string]any{"name": "d", "defaultMode": 420}}), sets(one().Mount("v", "/v").VolumeOf("v", "configMap", config("c"))), none},
		"an enforced one of another kind": {volumes(web(), map[string]any{"name": "v", "emptyDir": map[string]any{}}),
			sets(one().Annotation("sidecarset.io/enforce", "true").Mount("v", "/v").VolumeOf("v", "configMap", config("c"))), []string{`Volume: volume "v" takes the place of the Pod's own`}},
		"two SidecarSets with one volume":  {web().Obj(), sets(one().Mount("v", "/v").VolumeOf("v", "hostPath", hostPath("/a")), other().Mount("v", "/v").VolumeOf("v", "hostPath", hostPath("/a"))), none},
		"two SidecarSets with two volumes": {web().Obj(), sets(one().Mount("v", "/v").VolumeOf("v", "hostPath", hostPath("/a")), other().Mount("v", "/v").Volume("v")), []string{`t Volume: SidecarSet "s" brings another volume "v"`}},

		// ports
		"a port of another name":      {web().With("ports", port("http", 8080, "TCP")).Obj(), sets(one().With("ports", port("admin", 9999, ""))), none},
		"of the same number":          {web().With("ports", port("http", 8080, "TCP")).Obj(), sets(one().With("ports", port("http", 8080, ""))), none},
		"of another protocol":         {web().With("ports", port("dns", 53, "UDP")).Obj(), sets(one().With("ports", port("dns", 5353, "TCP"))), none},
		"the sidecar's port is first": {web().With("ports", port("http", 8080, "TCP")).Obj(), sets(one().With("ports", port("http", 9999, ""))), []string{`s PortName: a Service with targetPort "http" reaches port 9999 of container "c", not port 8080 of container "app"`}},
		"the app's port is first":     {web().With("ports", port("http", 8080, "TCP")).Obj(), sets(one().AfterApp().With("ports", port("http", 9999, ""))), []string{`reaches port 8080 of container "app", not port 9999 of container "c"`}},
		"a native sidecar is last":    {web().With("ports", port("http", 8080, "TCP")).Obj(), sets(fixtures.SidecarSet("s").Native("n", "n:1").BeforeApp().With("ports", port("http", 9999, ""))), []string{`reaches port 8080*9999 of container "n"`}},
		"two SidecarSets' ports":      {web().Obj(), sets(one().With("ports", port("http", 1, "")), other().With("ports", port("http", 2, ""))), []string{`t PortName: a Service with targetPort "http" reaches port 1 of container "c", not port 2 of container "d"`}},
		"a hot-upgrade pair's ports":  {web().Obj(), sets(one().With("upgradeStrategy", hot).With("ports", port("http", 1, ""))), none},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := fixtures.Input(t, tc.pod, objects(tc.sets)...)
			got, plan := injected(t, in, tc.pod)
			if len(plan.Warnings) != len(tc.want) {
				t.Fatalf("warnings: %+v, want %d", plan.Warnings, len(tc.want))
			}
			for i, n := range plan.Warnings {
				text := fmt.Sprintf("%s %s: %s", n.SidecarSet, n.Kind, n.Text)
				for _, part := range strings.Split(tc.want[i], "*") {
					if !strings.Contains(text, part) {
						t.Errorf("warning %q lacks %q", text, part)
					}
				}
			}
			if again, err := inject.Compute(fixtures.Input(t, got, objects(tc.sets)...)); err != nil || len(again.Warnings) > 0 {
				t.Errorf("a second call for the Pod tells %+v, %v", again.Warnings, err)
			}
		})
	}
}

func sets(list ...*fixtures.SidecarSetBuilder) []*fixtures.SidecarSetBuilder { return list }

func other() *fixtures.SidecarSetBuilder { return fixtures.SidecarSet("t").Container("d", "d:1") }

// Whatever names a Pod has, a warning is short.
func TestWarningsOfHostilePodsAreBounded(t *testing.T) {
	long := strings.Repeat("\x01", 1000)
	many := []any{mount("v", "/e", "subPathExpr", "$("+long+")")}
	for i := range 5000 {
		many = append(many, mount(fmt.Sprint("v", i), "/d"))
	}
	pod := fixtures.Pod("web").Container(long, "app:v1").With("volumeMounts", many).With("ports", port(long, 1, "TCP")).
		With("envFrom", []any{map[string]any{}}).Obj()
	var all []map[string]any
	for i := range 50 {
		all = append(all, fixtures.SidecarSet(fmt.Sprint("s", i)).Container(fmt.Sprint("c", i), "c:1").
			With("shareVolumePolicy", enabled).With("transferEnv", transferOf("x", "A")).Map())
	}
	in := fixtures.Input(t, pod, all...)
	plan, err := inject.Compute(in)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range plan.Warnings {
		if len(n.Text) > 4<<10 || strings.Contains(n.Text, "\x01") {
			t.Fatalf("a warning of %d bytes: %s", len(n.Text), n.Text)
		}
	}
	if len(plan.Warnings) != 50 {
		t.Errorf("%d warnings", len(plan.Warnings))
	}
}

// The annotation for kubectl names the first container of the app, if a SidecarSet asks for it
// and the Pod does not have it.
func TestDefaultContainer(t *testing.T) {
	const key = "kubectl.kubernetes.io/default-container"
	asks := func(set *fixtures.SidecarSetBuilder) *fixtures.SidecarSetBuilder {
		return set.Annotation("sidecarset.io/default-container", "App")
	}
	web := func() *fixtures.PodBuilder {
		return fixtures.Pod("web").Container("app", "app:v1").Container("b", "b:1")
	}
	tests := map[string]struct {
		pod  *fixtures.PodBuilder
		sets []*fixtures.SidecarSetBuilder
		want any // nil: no annotation
	}{
		"the app's first container":          {web(), sets(asks(one())), "app"},
		"nothing without the annotation":     {web(), sets(one(), other()), nil},
		"one of two SidecarSets asks":        {web(), sets(one(), asks(other())), "app"},
		"another value":                      {web(), sets(one().Annotation("sidecarset.io/default-container", "app")), nil},
		"a paused one does not":              {web(), sets(one(), asks(other()).Paused()), nil},
		"the Pod's own stays":                {web().Annotation(key, "b"), sets(asks(one())), "b"},
		"also an empty one":                  {web().Annotation(key, ""), sets(asks(one())), ""},
		"that of patchPodMetadata stays":     {web(), sets(asks(one()), other().PatchAnnotation("Retain", key, "b")), "b"},
		"not what another injector brought":  {fixtures.Pod("web").Container("mesh", "m:1").Injected().Container("app", "app:v1"), sets(asks(one())), "app"},
		"a native sidecar is enough":         {web(), sets(asks(fixtures.SidecarSet("s").Native("n", "n:1"))), "app"},
		"also a SidecarSet without sidecars": {web(), sets(asks(fixtures.SidecarSet("s").PatchAnnotation("Retain", "a", "1"))), "app"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod := tc.pod.Obj()
			got, _ := injected(t, fixtures.Input(t, pod, objects(tc.sets)...), pod)
			if diff := cmp.Diff(tc.want, annotations(got)[key]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again, err := inject.Compute(fixtures.Input(t, got, objects(tc.sets)...))
			if err != nil || !again.Empty() {
				t.Errorf("a second call changes the Pod: %s, %v", again.AppendPatch(nil), err)
			}
		})
	}
	t.Run("a later call leaves it", func(t *testing.T) {
		pod := web().Obj()
		first, _ := injected(t, fixtures.Input(t, pod, asks(one()).Map()), pod)
		second, _ := injected(t, fixtures.Input(t, first, asks(one()).Map(), asks(other()).Map()), first)
		if got := annotation(second, key); got != "app" {
			t.Errorf("annotation %v", got)
		}
	})
	t.Run("it is not in the hash", func(t *testing.T) {
		if a, b := fixtures.Compiled(t, one().Map()), fixtures.Compiled(t, asks(one()).Map()); a.Hash != b.Hash || a.HashWithoutImage != b.HashWithoutImage {
			t.Error("the hash has changed")
		}
	})
}
