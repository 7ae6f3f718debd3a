package explain_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/explain"
	"github.com/sidecarset/operator/internal/fixtures"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
)

type members = map[string]any

func selecting(t *testing.T, pods, namespaces any) *inject.Compiled {
	t.Helper()
	return fixtures.Compiled(t, fixtures.SidecarSet("s").Spec("selector", pods).Spec("namespaceSelector", namespaces).Container("c", "c:v1").Map())
}

func expression(key, operator string, values ...any) members {
	e := members{"key": key, "operator": operator}
	if len(values) > 0 {
		e["values"] = values
	}
	return members{"matchExpressions": []any{e}}
}

func TestMissesInWords(t *testing.T) {
	pod, namespace := labels.Set{"app": "web", "team": "a"}, labels.Set{"kubernetes.io/metadata.name": "shop", "env": "dev"}
	all := members{"matchLabels": members{"app": "web"}}
	for want, p := range map[string]*inject.Compiled{
		"": selecting(t, all, members{}),
		"spec.selector wants team=b; the Pod has team=a":                                                                    selecting(t, members{"matchLabels": members{"team": "b"}}, members{}),
		"spec.selector wants team in (b,c); the Pod has team=a":                                                             selecting(t, expression("team", "In", "c", "b"), members{}),
		"spec.selector wants team notin (a); the Pod has team=a":                                                            selecting(t, expression("team", "NotIn", "a"), members{}),
		"spec.selector wants tier; the Pod has no label tier":                                                               selecting(t, expression("tier", "Exists"), members{}),
		"spec.selector wants !team; the Pod has team=a":                                                                     selecting(t, expression("team", "DoesNotExist"), members{}),
		"spec.namespaceSelector wants kubernetes.io/metadata.name=prod; the Namespace has kubernetes.io/metadata.name=shop": selecting(t, all, members{"matchLabels": members{"kubernetes.io/metadata.name": "prod"}}),
		"spec.namespaceSelector wants env=prod; the Namespace has env=dev":                                                  selecting(t, all, members{"matchLabels": members{"env": "prod"}}),
		"spec.namespaceSelector wants x=1; the Namespace has no label x":                                                    selecting(t, all, members{"matchLabels": members{"x": "1"}}),
		"spec.selector wants team=b; the Pod has team=a | spec.selector wants a=1; the Pod has no label a":                  selecting(t, members{"matchLabels": members{"a": "1", "team": "b"}}, members{}),
	} {
		var got []string
		for _, m := range explain.Between(p, pod, namespace, true).Mismatches {
			got = append(got, m.String())
		}
		if text := strings.Join(got, " | "); text != want {
			t.Errorf("got  %s\nwant %s", text, want)
		}
	}
}

// A SidecarSet selects a Pod exactly if no term is missed.
func TestNothingIsMissedExactlyIfThePodIsSelected(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	value := func() string { return fmt.Sprint(r.IntN(3)) }
	set := func() labels.Set {
		s := labels.Set{}
		for _, key := range []string{"a", "b"} {
			if r.IntN(3) > 0 {
				s[key] = value()
			}
		}
		return s
	}
	term := func(keys ...string) any {
		key := keys[r.IntN(len(keys))]
		switch r.IntN(5) {
		case 0:
			return expression(key, "In", value(), "x")
		case 1:
			return expression(key, "NotIn", value(), "x")
		case 2:
			return expression(key, "Exists")
		case 3:
			return expression(key, "DoesNotExist")
		}
		return members{"matchLabels": members{key: value()}}
	}
	selected := 0
	for range 3000 {
		p := selecting(t, term("a", "b"), term("a", "b", "kubernetes.io/metadata.name"))
		pod, namespace := set(), set()
		namespace["kubernetes.io/metadata.name"] = value()
		got, err := match.Build([]*inject.Compiled{p}, nil).Select(namespace["kubernetes.io/metadata.name"], pod, func(string) (labels.Set, error) { return namespace, nil })
		if err != nil {
			t.Fatal(err)
		}
		misses := explain.Between(p, pod, namespace, true).Mismatches
		if (len(got.SidecarSets) > 0) != (len(misses) == 0) {
			t.Fatalf("selected: %v, misses %v; Pod %v, Namespace %v, %+v", len(got.SidecarSets) > 0, misses, pod, namespace, p.Set.Spec)
		}
		selected += len(got.SidecarSets)
	}
	if selected < 100 {
		t.Errorf("only %d Pods were selected", selected)
	}
}
