package hub_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/fixtures/random"
	"github.com/sidecarset/operator/internal/hub"
)

const manifest = `{"apiVersion":"apps.kruise.io/v1beta1","kind":"SidecarSet","metadata":{"name":"log","labels":{"apps.kruise.io/sidecarset-custom-version":"v7"}},
	"spec":{"selector":{"matchLabels":{"app":"web"}},"containers":[{"name":"a","image":"a:v1","invented":{"x":1}}]}}`

func alpha(manifest string) string { return strings.Replace(manifest, "v1beta1", "v1alpha1", 1) }

// The two forms of a SidecarSet have the same fields, whether its text could be decoded as
// it is or the object had to be converted or defaulted.
func TestHubGivesTwoFormsThatSayTheSame(t *testing.T) {
	for name, text := range map[string]string{"v1beta1": manifest, "v1alpha1": alpha(manifest)} {
		for _, defaulted := range []bool{false, true} {
			object, err := hub.Read([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if defaulted {
				object.Default()
			}
			set, err := object.Hub()
			if err != nil {
				t.Fatal(err)
			}
			want := &appsv1beta1.SidecarSet{}
			encoded, err := json.Marshal(set.Object)
			if err != nil {
				t.Fatal(err)
			}
			if err := utiljson.Unmarshal(encoded, want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, set.Set); diff != "" {
				t.Errorf("%s, defaulted %v (-as JSON +as our type):\n%s", name, defaulted, diff)
			}
			if container := string(encoded); !strings.Contains(container, `"invented":{"x":1}`) {
				t.Errorf("%s: a member is lost: %s", name, container)
			}
			if wanted := defaulted; (set.Set.Spec.Containers[0].PodInjectPolicy != "") != wanted {
				t.Errorf("%s: podInjectPolicy is %q, defaulted %v", name, set.Set.Spec.Containers[0].PodInjectPolicy, defaulted)
			}
		}
	}
}

func TestHubNamesTheMemberOfTheWrongType(t *testing.T) {
	many := strings.Repeat(`{"name":"a"},`, 2000)
	for name, tc := range map[string]struct{ old, replacement, path, says string }{
		"a number for a string":          {`"a:v1"`, `5`, "spec.containers[0].image", "must be a string, not number"},
		"a string for a list":            {`[{"name":"a","image":"a:v1","invented":{"x":1}}]`, `"all"`, "spec.containers", "must be a list, not string"},
		"an object for a list":           {`[{"name":"a","image":"a:v1","invented":{"x":1}}]`, `{"a":{"image":"a:v1"}}`, "spec.containers", "must be a list, not object"},
		"a quantity":                     {`"invented":{"x":1}`, `"resources":{"limits":{"cpu":"much"}}`, "spec.containers[0].resources.limits.cpu", "quantities must match"},
		"metadata":                       {`{"name":"log","labels":{"apps.kruise.io/sidecarset-custom-version":"v7"}}`, `"log"`, "metadata", "must be an object, not string"},
		"the last of many":               {`[{"name":"a","image":"a:v1","invented":{"x":1}}]`, `[` + many + `5]`, "spec.containers[2000]", "must be an object, not number"},
		"not a member that is not known": {`{"x":1}`, `[5]`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			object, err := hub.Read([]byte(strings.Replace(manifest, tc.old, tc.replacement, 1)))
			if err != nil {
				t.Fatal(err)
			}
			_, err = object.Hub()
			var member *hub.MemberError
			switch errors.As(err, &member); {
			case tc.path == "" && err != nil:
				t.Errorf("got %v", err)
			case tc.path != "" && (member == nil || member.Path != tc.path || !strings.Contains(member.Err.Error(), tc.says)):
				t.Errorf("got %v, want %s: %s", err, tc.path, tc.says)
			}
		})
	}
}

func TestReadRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ text, says string }{
		"nothing":         {"", "the request holds no object"},
		"half an object":  {manifest[:40], "reading the object of the request"},
		"another kind":    {strings.Replace(manifest, `"SidecarSet"`, `"Pod"`, 1), "unexpected kind: Pod"},
		"another version": {strings.Replace(manifest, "v1beta1", "v2", 1), "unsupported version: v2; use v1beta1 or v1alpha1 of apps.kruise.io"},
		"another group":   {strings.Replace(manifest, "apps.kruise.io/v1beta1", "apps/v1", 1), "unsupported version: apps/v1"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := hub.Read([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v, want %s", err, tc.says)
			}
		})
	}
}

// Our types are decoded as Kubernetes' own decoder decodes them.
func TestTypedEqualsKubernetesDecoder(t *testing.T) {
	g := random.New(11)
	for range 300 {
		text, err := json.Marshal(g.SidecarSet())
		if err != nil {
			t.Fatal(err)
		}
		var object map[string]any
		want := &appsv1beta1.SidecarSet{}
		if utiljson.Unmarshal(text, &object) != nil || utiljson.Unmarshal(text, want) != nil {
			t.Fatalf("not decoded: %s", text)
		}
		got, err := hub.Typed(object)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("(-Kubernetes +ours):\n%s\n%s", diff, text)
		}
	}
}
