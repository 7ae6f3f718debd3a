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

func selecting(t *testing.T, pods, namespaces any) *inject.Program {
	t.Helper()
	return fixtures.Program(t, fixtures.SidecarSet("s").Spec("selector", pods).Spec("namespaceSelector", namespaces).Container("c", "c:v1").Map())
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
	many := []any{"b", "c", "d", "e", "f", "g", "h", "i"}
	for want, p := range map[string]*inject.Program{
		"": selecting(t, all, members{}),
		`label teams: the Pod does not have it, but has label team, which is almost the same; the SidecarSet wants "a"`:      selecting(t, members{"matchLabels": members{"teams": "a"}}, members{}),
		`label tram: the Pod does not have it, but has label team, which is almost the same; the SidecarSet wants "a"`:       selecting(t, members{"matchLabels": members{"tram": "a"}}, members{}),
		`label team: the Pod has "a", the SidecarSet wants "b"`:                                                              selecting(t, members{"matchLabels": members{"team": "b"}}, members{}),
		`label team: the Pod has "a", the SidecarSet wants one of "b", "c"`:                                                  selecting(t, expression("team", "In", "c", "b"), members{}),
		`label team: the Pod has "a", the SidecarSet wants one of "b", "c", "d", "e", "f", "g" and 2 more`:                   selecting(t, expression("team", "In", many...), members{}),
		`label team: the Pod has "a", the SidecarSet wants none of "a"`:                                                      selecting(t, expression("team", "NotIn", "a"), members{}),
		`label tier: the Pod does not have it, the SidecarSet wants it with any value`:                                       selecting(t, expression("tier", "Exists"), members{}),
		`label team: the Pod has "a", the SidecarSet wants it to be absent`:                                                  selecting(t, expression("team", "DoesNotExist"), members{}),
		`namespace: the Pod is in "shop", the SidecarSet wants "prod"`:                                                       selecting(t, all, members{"matchLabels": members{"kubernetes.io/metadata.name": "prod"}}),
		`namespace label env: the Namespace has "dev", the SidecarSet wants "prod"`:                                          selecting(t, all, members{"matchLabels": members{"env": "prod"}}),
		`namespace label x: the Namespace does not have it, the SidecarSet wants "1"`:                                        selecting(t, all, members{"matchLabels": members{"x": "1"}}),
		`label team: the Pod has "a", the SidecarSet wants "b"; label a: the Pod does not have it, the SidecarSet wants "1"`: selecting(t, members{"matchLabels": members{"a": "1", "team": "b"}}, members{}),
	} {
		var got []string
		for _, m := range explain.Between(p, pod, namespace, true).Misses {
			got = append(got, m.String())
		}
		if text := strings.Join(got, "; "); text != want {
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
		got, err := match.Build([]*inject.Program{p}, nil).Select(namespace["kubernetes.io/metadata.name"], pod, func(string) (labels.Set, error) { return namespace, nil })
		if err != nil {
			t.Fatal(err)
		}
		misses := explain.Between(p, pod, namespace, true).Misses
		if (len(got.Programs) > 0) != (len(misses) == 0) {
			t.Fatalf("selected: %v, misses %v; Pod %v, Namespace %v, %+v", len(got.Programs) > 0, misses, pod, namespace, p.Set.Spec)
		}
		selected += len(got.Programs)
	}
	if selected < 100 {
		t.Errorf("only %d Pods were selected", selected)
	}
}
