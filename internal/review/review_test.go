package review_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	sigsjson "sigs.k8s.io/json"

	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/review"
	"github.com/sidecarset/operator/test/rounds"
)

// read reads all of a review.
func read(document []byte) (review.Head, inject.PodView, error) {
	var r review.Reader
	head, err := r.ReadHead(document)
	if err != nil {
		return head, inject.PodView{}, err
	}
	pod, err := r.ReadPod(document, head.Labels)
	return head, pod, err
}

// oracle is what Kubernetes' own decoder makes of a review.
type oracle struct {
	Kind       string `json:"kind"`
	APIVersion string `json:"apiVersion"`
	Request    *struct {
		UID         string `json:"uid"`
		Namespace   string `json:"namespace"`
		Operation   string `json:"operation"`
		SubResource string `json:"subResource"`
		Resource    struct {
			Group    string `json:"group"`
			Resource string `json:"resource"`
		} `json:"resource"`
		Object *struct {
			Metadata *struct {
				Name        string            `json:"name"`
				Labels      map[string]string `json:"labels"`
				Annotations map[string]string `json:"annotations"`
			} `json:"metadata"`
			Spec *struct {
				InitContainers   []oracleContainer `json:"initContainers"`
				Containers       []oracleContainer `json:"containers"`
				Volumes          []json.RawMessage `json:"volumes"`
				ImagePullSecrets []oracleName      `json:"imagePullSecrets"`
				HostNetwork      bool              `json:"hostNetwork"`
				OS               oracleName        `json:"os"`
				Resources        json.RawMessage   `json:"resources"`
			} `json:"spec"`
		} `json:"object"`
	} `json:"request"`
}

type oracleContainer struct {
	Name          string            `json:"name"`
	Image         string            `json:"image"`
	Env           oracleEnv         `json:"env"`
	VolumeMounts  json.RawMessage   `json:"volumeMounts"`
	VolumeDevices json.RawMessage   `json:"volumeDevices"`
	Resources     json.RawMessage   `json:"resources"`
	RestartPolicy string            `json:"restartPolicy"`
	Ports         json.RawMessage   `json:"ports"`
	EnvFrom       []json.RawMessage `json:"envFrom"`
}

// oracleEnv is a container's env and its JSON.
type oracleEnv struct {
	list []struct {
		Name  string `json:"name"`
		Value string `json:"value"`
	}
	raw json.RawMessage
}

func (e *oracleEnv) UnmarshalJSON(data []byte) error {
	e.raw = slices.Clone(data)
	return sigsjson.UnmarshalCaseSensitivePreserveInts(data, &e.list)
}

type oracleName struct {
	Name string `json:"name"`
}

func (o *oracle) view() inject.PodView {
	object := o.Request.Object
	return inject.PodView{
		Labels: object.Metadata.Labels, Annotations: object.Metadata.Annotations,
		InitContainers: oracleViews(object.Spec.InitContainers), Containers: oracleViews(object.Spec.Containers),
		Volumes: oracleVolumes(object.Spec.Volumes), ImagePullSecrets: oracleNames(object.Spec.ImagePullSecrets),
		Spec: inject.SpecView{
			HostNetwork: object.Spec.HostNetwork, OS: object.Spec.OS.Name,
			Resources: object.Spec.Resources,
		},
	}
}

func oracleViews(containers []oracleContainer) []inject.ContainerView {
	if containers == nil {
		return nil
	}
	views := make([]inject.ContainerView, len(containers))
	for i, c := range containers {
		views[i] = inject.ContainerView{
			Name: c.Name, Image: c.Image, Env: c.Env.raw, VolumeMounts: c.VolumeMounts, VolumeDevices: c.VolumeDevices, Resources: c.Resources,
			RestartPolicy: c.RestartPolicy, Ports: c.Ports, EnvFrom: len(c.EnvFrom) > 0,
		}
		for _, env := range c.Env.list {
			if env.Name == "IS_INJECTED" {
				views[i].Injected = env.Value == "true"
				break
			}
		}
	}
	return views
}

func oracleVolumes(bodies []json.RawMessage) []inject.VolumeView {
	if bodies == nil {
		return nil
	}
	volumes := make([]inject.VolumeView, len(bodies))
	for i, body := range bodies {
		var named oracleName
		if err := sigsjson.UnmarshalCaseSensitivePreserveInts(body, &named); err != nil {
			panic(err) // read takes what Kubernetes takes
		}
		volumes[i] = inject.VolumeView{Name: named.Name, Body: body}
	}
	return volumes
}

func oracleNames(items []oracleName) []string {
	if items == nil {
		return nil
	}
	names := make([]string, len(items))
	for i, item := range items {
		names[i] = item.Name
	}
	return names
}

// checkAgainstOracle fails if body is read with another meaning than Kubernetes' decoder gives
// it. It reports whether body was read.
func checkAgainstOracle(t *testing.T, body []byte) bool {
	t.Helper()
	head, pod, err := read(body)
	if err != nil || !head.CreatesPod() {
		return false
	}
	var want oracle
	if err := sigsjson.UnmarshalCaseSensitivePreserveInts(body, &want); err != nil {
		t.Fatalf("we read what Kubernetes does not: %v\n%s", err, body)
	}
	if diff := cmp.Diff(want.view(), pod, sameJSON); diff != "" {
		t.Fatalf("view (-want +got):\n%s\n%s", diff, body)
	}
	request := want.Request
	wantRest := []any{want.Kind, request.UID, request.Namespace, request.Operation, request.SubResource, request.Resource.Group, request.Resource.Resource}
	gotRest := []any{"AdmissionReview", head.UID, head.Namespace, head.Operation, head.SubResource, head.Group, head.Resource}
	if diff := cmp.Diff(wantRest, gotRest); diff != "" {
		t.Fatalf("rest of the review (-want +got):\n%s\n%s", diff, body)
	}
	return true
}

// sameJSON compares raw JSON by its meaning; null is the same as an absent value.
var sameJSON = cmp.Transformer("JSON", func(raw json.RawMessage) (value any) {
	if raw != nil {
		if err := json.Unmarshal(raw, &value); err != nil {
			return err
		}
	}
	return value
})

// The reader reads the same as Kubernetes, whatever the order of members, the white space and
// the escapes.
func TestReaderEqualsKubernetesDecoder(t *testing.T) {
	for seed := range uint64(rounds.Of(2000, 200)) {
		g := generator{rand.New(rand.NewPCG(seed, 1))}
		if body := g.write(g.review()); !checkAgainstOracle(t, body) {
			t.Fatalf("seed %d: not read:\n%s", seed, body)
		}
	}
}

// In the order in which the API server writes, the Head ends at the labels. Not even the
// syntax of the rest is read.
func TestReadHeadStopsAtTheLabels(t *testing.T) {
	body := []byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u","resource":{"resource":"pods"},` +
		`"namespace":"shop","operation":"CREATE","object":{"metadata":{"name":"web","labels":{"app":"web"},!!!`)
	var r review.Reader
	head, err := r.ReadHead(body)
	if err != nil || head.PodName() != "shop/web" || head.Labels["app"] != "web" {
		t.Errorf("got %+v, %v", head, err)
	}
	if _, err := r.ReadPod(body, head.Labels); err == nil {
		t.Error("a Pod was read past a syntax error")
	}
}

// Nothing of an object is read if the request does not create a Pod.
func TestReadHeadStopsBeforeAnotherObject(t *testing.T) {
	for name, request := range map[string]string{
		"an update":        `"resource":{"resource":"pods"},"operation":"UPDATE"`,
		"another resource": `"resource":{"resource":"nodes"},"operation":"CREATE"`,
		"another group":    `"resource":{"group":"apps","resource":"pods"},"operation":"CREATE"`,
		"a subresource":    `"resource":{"resource":"pods"},"subResource":"binding","operation":"CREATE"`,
	} {
		t.Run(name, func(t *testing.T) {
			var r review.Reader
			head, err := r.ReadHead([]byte(`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","request":{"uid":"u",` + request + `,"object":!!!`))
			if err != nil || head.UID != "u" || head.CreatesPod() {
				t.Errorf("got %+v, %v", head, err)
			}
		})
	}
}

// Whatever the bytes are, the reader does not panic, and never gives them another meaning than
// Kubernetes does.
func FuzzReader(f *testing.F) {
	for seed := range uint64(20) {
		g := generator{rand.New(rand.NewPCG(seed, 5))}
		f.Add(g.write(g.review()))
	}
	f.Fuzz(func(t *testing.T, body []byte) { checkAgainstOracle(t, body) })
}

// generator makes random reviews, with values that are at least as odd as those that the API
// server could send.
type generator struct{ *rand.Rand }

// review is an envelope around a random Pod that may have nulls in it.
func (g generator) review() map[string]any { return g.envelope(g.pod(true)) }

func (g generator) envelope(pod map[string]any) map[string]any {
	return map[string]any{
		"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
		"request": map[string]any{
			"uid": "uid-" + g.word(), "namespace": "shop", "operation": "CREATE", "dryRun": g.IntN(2) == 0, "oldObject": nil,
			"kind":     map[string]any{"group": "", "version": "v1", "kind": "Pod"},
			"resource": map[string]any{"group": "", "version": "v1", "resource": "pods"},
			"userInfo": map[string]any{"username": g.word(), "groups": []any{g.word()}},
			"object":   pod,
		},
		g.word(): g.anything(3),
	}
}

func (g generator) pod(nulls bool) map[string]any {
	metadata := map[string]any{"name": g.word()}
	g.maybe(metadata, "labels", nulls, func() any { return g.words() })
	g.maybe(metadata, "annotations", nulls, func() any { return g.words() })
	g.maybe(metadata, "managedFields", nulls, func() any { return []any{g.anything(3)} })
	spec := map[string]any{}
	g.maybe(spec, "hostNetwork", nulls, func() any { return g.IntN(2) == 0 })
	g.maybe(spec, "hostUsers", nulls, func() any { return g.IntN(2) == 0 })
	g.maybe(spec, "os", nulls, func() any { return map[string]any{"name": g.word()} })
	g.maybe(spec, "restartPolicy", nulls, func() any { return g.word() })
	g.maybe(spec, "resources", nulls, func() any { return g.anything(3) })
	g.maybe(spec, "initContainers", nulls, func() any { return g.list(func() any { return g.container(nulls) }) })
	g.maybe(spec, "containers", nulls, func() any { return g.list(func() any { return g.container(nulls) }) })
	g.maybe(spec, "volumes", nulls, func() any {
		return g.list(func() any { return map[string]any{"name": g.word(), g.word(): g.anything(2)} })
	})
	g.maybe(spec, "imagePullSecrets", nulls, func() any { return g.list(func() any { return map[string]any{"name": g.word()} }) })
	g.maybe(spec, g.word(), nulls, func() any { return g.anything(3) })
	pod := map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": spec}
	g.maybe(pod, "status", nulls, func() any { return map[string]any{"phase": g.word(), "qosClass": "Burstable"} })
	return pod
}

func (g generator) container(nulls bool) any {
	if nulls && g.IntN(20) == 0 {
		return nil
	}
	c := map[string]any{"name": g.word()}
	g.maybe(c, "image", nulls, func() any { return g.word() })
	g.maybe(c, "env", nulls, func() any {
		return g.list(func() any {
			env := map[string]any{"name": []string{g.word(), "IS_INJECTED"}[g.IntN(2)]}
			g.maybe(env, "value", nulls, func() any { return []string{"true", "false"}[g.IntN(2)] })
			g.maybe(env, "valueFrom", nulls, func() any { return g.anything(2) })
			return env
		})
	})
	g.maybe(c, "envFrom", nulls, func() any { return g.list(func() any { return g.words() }) })
	for _, part := range []string{"volumeMounts", "volumeDevices", "resources", "ports", g.word()} {
		g.maybe(c, part, nulls, func() any { return g.anything(3) })
	}
	g.maybe(c, "restartPolicy", nulls, func() any { return g.word() })
	return c
}

// maybe sets a member most of the time, to null now and then.
func (g generator) maybe(object map[string]any, name string, nulls bool, value func() any) {
	switch n := g.IntN(10); {
	case n < 7:
		object[name] = value()
	case n == 7 && nulls:
		object[name] = nil
	}
}

func (g generator) list(element func() any) []any {
	list := []any{}
	for range g.IntN(4) {
		list = append(list, element())
	}
	return list
}

func (g generator) words() map[string]any {
	words := map[string]any{}
	for range g.IntN(4) {
		words[g.word()] = g.word()
	}
	return words
}

func (g generator) word() string {
	words := []string{"", "app", "web", "Name", "héllo", "a/b", "x~y", "quo\"te", "back\\slash", "tab\t", "\u2028", "🙂", "<&>"}
	return words[g.IntN(len(words))] + strings.Repeat("z", g.IntN(3))
}

func (g generator) anything(depth int) any {
	switch n := g.IntN(8); {
	case depth == 0 || n < 4:
		return []any{nil, true, false, g.word(), 12.5, -7, 1e300}[g.IntN(7)]
	case n < 6:
		return g.list(func() any { return g.anything(depth - 1) })
	default:
		return map[string]any{g.word(): g.anything(depth - 1), "name": g.anything(depth - 1), "labels": g.anything(depth - 1)}
	}
}

// write encodes a value with members in random order, random white space and
// random escapes.
func (g generator) write(value any) []byte {
	return []byte(g.space() + g.encode(value) + g.space())
}

func (g generator) encode(value any) string {
	switch value := value.(type) {
	case map[string]any:
		members := make([]string, 0, len(value))
		for name, member := range value {
			members = append(members, g.space()+g.quote(name)+g.space()+":"+g.space()+g.encode(member)+g.space())
		}
		slices.Sort(members) // a map's order is not the seed's
		g.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
		return "{" + strings.Join(members, ",") + "}"
	case []any:
		elements := make([]string, len(value))
		for i, element := range value {
			elements[i] = g.space() + g.encode(element) + g.space()
		}
		return "[" + strings.Join(elements, ",") + "]"
	case string:
		return g.quote(value)
	default:
		data, err := json.Marshal(value)
		if err != nil {
			panic(fmt.Sprintf("encoding %v: %v", value, err)) // values are made above
		}
		return string(data)
	}
}

func (g generator) space() string { return []string{"", "", "", " ", "\n\t"}[g.IntN(5)] }

func (g generator) quote(s string) string {
	if s != "" && s[0] < 0x80 && g.IntN(4) == 0 {
		rest, _ := json.Marshal(s[1:])
		return fmt.Sprintf(`"\u%04x`, s[0]) + string(rest[1:])
	}
	data, _ := json.Marshal(s)
	return string(data)
}
