package revision

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/randfill"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// newerThanTable lists members that the library in go.mod has and the frozen
// table must not get, as Type.member. They are hashed as unknown members.
var newerThanTable = []string{}

// An upgrade of k8s.io/api may add members. A developer adds them to the list above after
// finding out what they mean for hashes. An upgrade may not change the order or the types of
// members.
func TestTableAgreesWithLibrary(t *testing.T) {
	for _, difference := range compare(sidecarContainer, reflect.TypeFor[appsv1beta1.SidecarContainer]()) {
		t.Error(difference)
	}
}

func compare(s *shape, typ reflect.Type) []string {
	got, want := describeShape(s), describeType(typ)
	if s.kind != kindObject {
		if got != want {
			return []string{fmt.Sprintf("%s: the table says %s, the library %s", typ, got, want)}
		}
		if s.elem != nil {
			return compare(s.elem, typ.Elem())
		}
		return nil
	}
	if want != "object" {
		return []string{fmt.Sprintf("%s: the table says object, the library %s", typ, want)}
	}
	var differences []string
	members := membersOf(typ)
	for i := range s.fields {
		f := &s.fields[i]
		if len(members) <= i || members[i].name != f.name {
			return append(differences, fmt.Sprintf("%s: member %d is %s in the table, the library has %v", typ, i, f.name, members[min(i, len(members)):]))
		}
		if members[i].presence != f.presence {
			differences = append(differences, fmt.Sprintf("%s.%s: the table drops it as %d, the library as %d", typ, f.name, f.presence, members[i].presence))
		}
		differences = append(differences, compare(f.shape, members[i].typ)...)
	}
	for _, m := range members[len(s.fields):] {
		differences = append(differences, fmt.Sprintf("%s.%s: not in the table; list it in newerThanTable", typ, m.name))
	}
	return differences
}

type member struct {
	name     string
	typ      reflect.Type
	presence presence
}

// membersOf are the members that encoding/json writes, in its order.
func membersOf(typ reflect.Type) []member {
	var members []member
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			members = append(members, membersOf(f.Type)...)
			continue
		}
		if slices.Contains(newerThanTable, typ.Name()+"."+name) {
			continue
		}
		m := member{name: name, typ: f.Type, presence: presenceOf(f.Type, options)}
		if f.Type.Kind() == reflect.Pointer {
			m.typ = f.Type.Elem()
		}
		members = append(members, m)
	}
	return members
}

func presenceOf(typ reflect.Type, options string) presence {
	pointer, omitempty := typ.Kind() == reflect.Pointer, strings.Contains(options, "omitempty")
	switch {
	case strings.Contains(options, "omitzero"), strings.Contains(options, "string"):
		return -1 // the table has no such shape
	case pointer && omitempty:
		return dropAbsent
	case pointer:
		return nullAbsent
	case omitempty && typ.Kind() != reflect.Struct: // omitempty does nothing for structs
		return dropZero
	default:
		return always
	}
}

func describeType(typ reflect.Type) string {
	switch typ {
	case reflect.TypeFor[resource.Quantity]():
		return "quantity"
	case reflect.TypeFor[intstr.IntOrString]():
		return "intOrString"
	}
	switch typ.Kind() {
	case reflect.Struct:
		return "object"
	case reflect.Slice:
		return "list"
	case reflect.Map:
		return "map"
	default:
		return typ.Kind().String()
	}
}

func describeShape(s *shape) string {
	return map[kind]string{kindString: "string", kindBool: "bool", kindInt32: "int32", kindInt64: "int64",
		kindQuantity: "quantity", kindIntOrString: "intOrString", kindObject: "object", kindList: "list", kindMap: "map"}[s.kind]
}

func FuzzPreimageEqualsEncodingJSON(f *testing.F) {
	for seed := range int64(200) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, seed int64) {
		list := randomContainers(seed)
		want := marshal(t, map[string]any{"containers": list})
		got, err := preimage(map[string]any{"containers": decodeAny(t, marshal(t, list))})
		if err != nil {
			t.Fatalf("preimage: %v", err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("preimage (-encoding/json +ours):\n%s", diff)
		}
	})
}

// An object keeps its preimage when it is written, read and hashed again.
func FuzzUnknownMembersAreCanonical(f *testing.F) {
	f.Add([]byte(`{"containers":[{"name":"a","b":{"d":1.5e-9,"c":[1,null,{"x":1e30}]},"ports":[{"q":"\u2028<\b"}]}]}`))
	f.Add([]byte(`{"initContainers":[{"restartPolicy":"Always","n":-0.0}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var spec map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts(data, &spec) != nil {
			return // not an object
		}
		first, err := preimage(spec)
		if err != nil {
			return // of another type
		}
		for line := range strings.Lines(string(first)) {
			if !json.Valid([]byte(line)) {
				t.Errorf("not JSON: %s", line)
			}
		}
		again, err := preimage(decode(t, marshal(t, spec)))
		if err != nil || string(again) != string(first) {
			t.Errorf("%s became %s, %v", first, again, err)
		}
	})
}

func randomContainers(seed int64) []appsv1beta1.SidecarContainer {
	filler := randfill.NewWithSeed(seed).NilChance(.4).NumElements(0, 3).MaxDepth(12).Funcs(
		func(s *string, c randfill.Continue) {
			alphabets := []string{"abc", "é漢\u2028\u2029🙂", "<>&\"\\/", "\b\f\n\r\t\x00\x1f\x7f", "ok\xff"}
			var b strings.Builder
			for range c.Intn(6) {
				alphabet := []rune(alphabets[c.Intn(len(alphabets))])
				b.WriteRune(alphabet[c.Intn(len(alphabet))])
			}
			*s = b.String()
		},
		func(q *resource.Quantity, c randfill.Continue) { *q = randomQuantity(c.Rand) },
		func(p *intstr.IntOrString, c randfill.Continue) {
			*p = intstr.FromInt32(int32(c.Uint32()))
			if c.Bool() {
				*p = intstr.FromString("h<tp")
			}
		},
		func(g *corev1.GRPCAction, c randfill.Continue) {
			if c.FillNoCustom(g); c.Bool() {
				g.Service = nil // written as null; pointers to strings are never nil otherwise
			}
		},
		func(p *corev1.ContainerRestartPolicy, _ randfill.Continue) { *p = corev1.ContainerRestartPolicyAlways },
	)
	var list []appsv1beta1.SidecarContainer
	filler.Fill(&list)
	return list
}

func randomQuantity(r *rand.Rand) resource.Quantity {
	suffixes := []string{"", "n", "u", "m", "k", "M", "G", "Ki", "Mi", "Gi", "Ti", "e3", "E-2"}
	sign := []string{"", "-", "+"}[r.Intn(3)]
	return resource.MustParse(fmt.Sprintf("%s%d.%d%s", sign, r.Intn(5000), r.Intn(1000), suffixes[r.Intn(len(suffixes))]))
}

func marshal(t *testing.T, v any) []byte {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func decode(t *testing.T, data []byte) map[string]any {
	t.Helper()
	object, _ := decodeAny(t, data).(map[string]any)
	return object
}

func decodeAny(t *testing.T, data []byte) any {
	t.Helper()
	var v any
	if err := kjson.UnmarshalCaseSensitivePreserveInts(data, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
