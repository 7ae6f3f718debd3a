package revision

import (
	"encoding/json"
	"math/rand"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// The vectors have every volume source of Kubernetes 1.32, whose libraries OpenKruise uses,
// three times: without members, with zero members, and with members that are set. The recorded
// data were made with these libraries, by json.Unmarshal into a corev1.Volume of k8s.io/api
// v0.32.0 and json.Marshal.
func TestDataOfVolumesIsThatOfTheReference(t *testing.T) {
	file, err := os.ReadFile("testdata/volumes-of-kubernetes-1.32.json")
	if err != nil {
		t.Fatal(err)
	}
	vectors, _ := decodeAny(t, file).([]any)
	for _, v := range vectors {
		vector, _ := v.(map[string]any)
		name, _ := vector["name"].(string)
		t.Run(name, func(t *testing.T) {
			got, err := Data(map[string]any{"volumes": []any{vector["volume"]}})
			if err != nil {
				t.Fatalf("Data: %v", err)
			}
			if diff := cmp.Diff(string(recordedSpec(t, map[string]any{"volumes": []any{vector["recorded"]}})), string(got)); diff != "" {
				t.Errorf("data (-reference +ours):\n%s", diff)
			}
		})
	}
}

// recordedSpec is what OpenKruise records of a spec in the form of its types:
// five members of it, with the members of every object sorted.
func recordedSpec(t *testing.T, spec map[string]any) []byte {
	t.Helper()
	written := map[string]any{"$patch": "replace"}
	for _, list := range recorded {
		member := list.name
		written[member] = spec[member]
		if elems, _ := spec[member].([]any); len(elems) == 0 {
			written[member] = nil // its members are omitempty
		}
	}
	return marshal(t, map[string]any{"spec": written})
}

// FuzzDataIsInTheFormOfTheTypes writes specs as users may: with members that are
// null or zero, and with quantities in any form.
func FuzzDataIsInTheFormOfTheTypes(f *testing.F) {
	for seed := range int64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		raw := rough{rand.New(rand.NewSource(seed))}
		var typed struct {
			Containers       []appsv1beta1.SidecarContainer           `json:"containers,omitempty"`
			InitContainers   []appsv1beta1.SidecarContainer           `json:"initContainers,omitempty"`
			Volumes          []corev1.Volume                          `json:"volumes,omitempty"`
			ImagePullSecrets []corev1.LocalObjectReference            `json:"imagePullSecrets,omitempty"`
			PatchPodMetadata []appsv1beta1.SidecarSetPatchPodMetadata `json:"patchPodMetadata,omitempty"`
		}
		spec, _ := raw.value(reflect.TypeOf(typed), 0).(map[string]any)
		spec = decode(t, marshal(t, spec))
		if err := json.Unmarshal(marshal(t, spec), &typed); err != nil {
			t.Fatalf("%v in %s", err, marshal(t, spec))
		}
		stored := decode(t, marshal(t, typed))
		writeCreationTimestamps(stored)
		got, err := Data(spec)
		if err != nil {
			t.Fatalf("Data: %v", err)
		}
		if diff := cmp.Diff(string(recordedSpec(t, stored)), string(got)); diff != "" {
			t.Errorf("data (-types +ours):\n%s", diff)
		}
	})
}

// writeCreationTimestamps adds to claim templates the member creationTimestamp, as libraries
// before 0.34 do. Old and new libraries differ in no other member.
func writeCreationTimestamps(spec map[string]any) {
	volumes, _ := spec["volumes"].([]any)
	for _, v := range volumes {
		volume, _ := v.(map[string]any)
		ephemeral, _ := volume["ephemeral"].(map[string]any)
		template, _ := ephemeral["volumeClaimTemplate"].(map[string]any)
		if metadata, ok := template["metadata"].(map[string]any); ok {
			metadata["creationTimestamp"] = nil
		}
	}
}

// rough makes values that a type can hold, in all the forms that JSON has for
// them.
type rough struct{ *rand.Rand }

func (r rough) value(typ reflect.Type, depth int) any {
	switch typ {
	case reflect.TypeFor[resource.Quantity]():
		return []any{"0", 0, "1024Mi", "1000m", 2, "0.5Gi", "1e3", "100n"}[r.Intn(8)]
	case reflect.TypeFor[intstr.IntOrString]():
		return []any{0, 80, "http", ""}[r.Intn(4)]
	}
	switch typ.Kind() {
	case reflect.Pointer:
		return r.value(typ.Elem(), depth)
	case reflect.Struct:
		members := make(map[string]any)
		for _, m := range membersOf(typ) {
			if v, ok := r.member(typ, m, depth+1); ok {
				members[m.name] = v
			}
		}
		return members
	case reflect.Slice:
		elems := make([]any, r.Intn(3))
		for i := range elems {
			elems[i] = r.value(typ.Elem(), depth)
		}
		return elems
	case reflect.Map:
		entries := make(map[string]any)
		for range r.Intn(3) {
			entries[[]string{"a", "b", "<&>"}[r.Intn(3)]] = r.value(typ.Elem(), depth)
		}
		return entries
	case reflect.String:
		return []string{"", "x", "a<b>&c", "é\u2028\x00"}[r.Intn(4)]
	case reflect.Bool:
		return r.Intn(2) == 0
	default:
		return r.Intn(3)
	}
}

// member is absent, null or any value. Of the metadata of a claim template, only
// labels and annotations may be set.
func (r rough) member(owner reflect.Type, m member, depth int) (any, bool) {
	isSet := owner != reflect.TypeFor[metav1.ObjectMeta]() || m.name == "labels" || m.name == "annotations"
	switch choice := r.Intn(10); {
	case choice < min(depth, 6), !isSet && choice < 6:
		return nil, false
	case choice == 6:
		return nil, true
	case isSet:
		return r.value(m.typ, depth), true
	case m.typ == reflect.TypeFor[metav1.Time]():
		return nil, true
	default:
		return zero(m.typ.Kind()), true
	}
}

func zero(kind reflect.Kind) any {
	switch kind {
	case reflect.String:
		return ""
	case reflect.Slice:
		return []any{}
	default:
		return 0
	}
}

// Volumes newer than the table lose nothing.
func TestDataKeepsUnknownMembersOfVolumes(t *testing.T) {
	got, err := Data(specFromYAML(t, `volumes: [{name: v, projected: {sources: [{novel: {a: null}}, {secret: {name: s, newer: [1]}}]}, future: {}}]`))
	if err != nil {
		t.Fatalf("Data: %v", err)
	}
	const want = `"volumes":[{"future":{},"name":"v","projected":{"sources":[{"novel":{"a":null}},{"secret":{"name":"s","newer":[1]}}]}}]`
	if !strings.Contains(string(got), want) {
		t.Errorf("data %s, want %s", got, want)
	}
}
