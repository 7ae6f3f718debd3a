package match_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/inject"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/test/rounds"
)

// compiled has selectors and a name, which is all that matching reads.
func compiled(t testing.TB, name string, pods, namespaces *metav1.LabelSelector) *inject.Compiled {
	t.Helper()
	p := &inject.Compiled{
		Set:               &appsv1beta1.SidecarSet{ObjectMeta: metav1.ObjectMeta{Name: name}},
		Selector:          selector(t, pods),
		NamespaceSelector: labels.Everything(),
	}
	if namespaces != nil {
		p.NamespaceSelector = selector(t, namespaces)
	}
	return p
}

// selector compiles a selector as Compile does: a nil or empty one selects nothing.
func selector(t testing.TB, s *metav1.LabelSelector) labels.Selector {
	t.Helper()
	if s == nil || len(s.MatchLabels)+len(s.MatchExpressions) == 0 {
		return labels.Nothing()
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatalf("selector: %v", err)
	}
	return compiled
}

func equal(pairs ...string) *metav1.LabelSelector {
	s := &metav1.LabelSelector{MatchLabels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		s.MatchLabels[pairs[i]] = pairs[i+1]
	}
	return s
}

func expr(key string, op metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: op, Values: values}}}
}

func names(sidecarSets []*inject.Compiled) []string {
	out := []string{}
	for _, p := range sidecarSets {
		out = append(out, p.Name())
	}
	return out
}

// unasked fails the test when labels of a Namespace are asked for.
func unasked(t testing.TB) func(string) (labels.Set, error) {
	return func(namespace string) (labels.Set, error) {
		t.Errorf("labels of Namespace %s were asked for", namespace)
		return nil, nil
	}
}

func known(set labels.Set) func(string) (labels.Set, error) {
	return func(string) (labels.Set, error) { return set, nil }
}

const nameLabel = "kubernetes.io/metadata.name"

func TestSelect(t *testing.T) {
	web := labels.Set{"app": "web", "tier": "front"}
	tests := map[string]struct {
		pods, namespaces *metav1.LabelSelector
		pod              labels.Set
		namespace        string
		labels           labels.Set // of the namespace; nil: must not be asked for
		want             bool
	}{
		"matchLabels all have to be there":            {pods: equal("app", "web", "tier", "front"), pod: web, want: true},
		"matchLabels one differs":                     {pods: equal("app", "web", "tier", "back"), pod: web},
		"In":                                          {pods: expr("app", "In", "db", "web"), pod: web, want: true},
		"In with a value twice is found once":         {pods: expr("app", "In", "web", "web"), pod: web, want: true},
		"NotIn on an absent key":                      {pods: expr("zone", "NotIn", "a"), pod: web, want: true},
		"NotIn":                                       {pods: expr("app", "NotIn", "web"), pod: web},
		"Exists":                                      {pods: expr("tier", "Exists"), pod: web, want: true},
		"DoesNotExist":                                {pods: expr("tier", "DoesNotExist"), pod: web},
		"a Pod without labels may match":              {pods: expr("tier", "DoesNotExist"), pod: nil, want: true},
		"an absent selector selects nothing":          {pods: nil, pod: web},
		"an empty selector selects nothing":           {pods: &metav1.LabelSelector{}, pod: web},
		"no namespaceSelector means every namespace":  {pods: equal("app", "web"), pod: web, namespace: "any", want: true},
		"a namespace by name needs no Namespace":      {pods: equal("app", "web"), namespaces: equal(nameLabel, "prod"), pod: web, namespace: "prod", want: true},
		"another namespace by name":                   {pods: equal("app", "web"), namespaces: equal(nameLabel, "prod"), pod: web, namespace: "test"},
		"namespaces by In":                            {pods: equal("app", "web"), namespaces: expr(nameLabel, "In", "prod", "test"), pod: web, namespace: "test", want: true},
		"namespaces by NotIn":                         {pods: equal("app", "web"), namespaces: expr(nameLabel, "NotIn", "prod"), pod: web, namespace: "prod"},
		"every Namespace has a name":                  {pods: equal("app", "web"), namespaces: expr(nameLabel, "Exists"), pod: web, namespace: "prod", want: true},
		"no Namespace is without a name":              {pods: equal("app", "web"), namespaces: expr(nameLabel, "DoesNotExist"), pod: web, namespace: "prod"},
		"only the namespace asks by value":            {pods: expr("app", "Exists"), namespaces: equal(nameLabel, "prod"), pod: web, namespace: "prod", want: true},
		"labels of the Namespace":                     {pods: equal("app", "web"), namespaces: equal("team", "a"), pod: web, namespace: "prod", labels: labels.Set{"team": "a"}, want: true},
		"other labels of the Namespace":               {pods: equal("app", "web"), namespaces: equal("team", "a"), pod: web, namespace: "prod", labels: labels.Set{"team": "b"}},
		"name decides before labels are asked for":    {pods: equal("app", "web"), namespaces: equal("team", "a", nameLabel, "test"), pod: web, namespace: "prod"},
		"Pod decides before labels are asked for":     {pods: equal("app", "db"), namespaces: equal("team", "a"), pod: web, namespace: "prod"},
		"name and labels":                             {pods: equal("app", "web"), namespaces: equal("team", "a", nameLabel, "prod"), pod: web, namespace: "prod", labels: labels.Set{"team": "a"}, want: true},
		"a label without a key is not a namespace":    {pods: expr("app", "Exists"), namespaces: equal(nameLabel, "prod"), pod: labels.Set{"app": "web", "": "prod"}, namespace: "prod", want: true},
		"a label without a key grants no namespace":   {pods: expr("app", "Exists"), namespaces: equal(nameLabel, "prod"), pod: labels.Set{"app": "web", "": "prod"}, namespace: "test"},
		"a Namespace without labels may match by not": {pods: equal("app", "web"), namespaces: expr("team", "DoesNotExist"), pod: web, namespace: "prod", labels: labels.Set{}, want: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := match.Build([]*inject.Compiled{compiled(t, "set", tc.pods, tc.namespaces)}, nil)
			ask := unasked(t)
			if tc.labels != nil {
				ask = known(tc.labels)
			}
			got, err := c.Select(tc.namespace, tc.pod, ask)
			if err != nil {
				t.Fatalf("Select: %v", err)
			}
			want := []string{}
			if tc.want {
				want = []string{"set"}
			}
			if diff := cmp.Diff(want, names(got.SidecarSets)); diff != "" {
				t.Errorf("selected (-want +got):\n%s", diff)
			}
			if leftOut := !tc.want && tc.labels != nil; got.LeftOut != leftOut {
				t.Errorf("left out by labels of the Namespace: %v, want %v", got.LeftOut, leftOut)
			}
		})
	}
}

func TestSelectReturnsTheErrorOfALookUp(t *testing.T) {
	c := match.Build([]*inject.Compiled{
		compiled(t, "plain", equal("app", "web"), nil),
		compiled(t, "team", equal("app", "web"), equal("team", "a")),
	}, nil)
	broken := errors.New("connection refused")
	got, err := c.Select("prod", labels.Set{"app": "web"}, func(string) (labels.Set, error) { return nil, broken })
	if !errors.Is(err, broken) || !strings.Contains(err.Error(), "Namespace prod") {
		t.Errorf("error = %v, want one that names the Namespace and holds its cause", err)
	}
	if got.SidecarSets != nil || got.LeftOut {
		t.Errorf("selected %v next to an error", names(got.SidecarSets))
	}
}

func TestSelectAsksTheSnapshotByDefault(t *testing.T) {
	c := match.Build([]*inject.Compiled{compiled(t, "team", equal("app", "web"), equal("team", "a"))}, map[string]labels.Set{"prod": {"team": "a"}})
	if got, err := c.Select("prod", labels.Set{"app": "web"}, nil); err != nil || len(got.SidecarSets) != 1 {
		t.Errorf("prod: %v, %v", names(got.SidecarSets), err)
	}
	if got, err := c.Select("test", labels.Set{"app": "web"}, nil); err == nil || got.SidecarSets != nil {
		t.Errorf("a Namespace that is not known: %v, %v", names(got.SidecarSets), err)
	}
}

func TestSelectAsksOnceForANamespace(t *testing.T) {
	var sidecarSets []*inject.Compiled
	for i := range 5 {
		sidecarSets = append(sidecarSets, compiled(t, fmt.Sprint("set-", i), equal("app", "web"), equal("team", "a")))
	}
	asked := 0
	got, err := match.Build(sidecarSets, nil).Select("prod", labels.Set{"app": "web"}, func(string) (labels.Set, error) {
		asked++
		return labels.Set{"team": "a"}, nil
	})
	if err != nil || len(got.SidecarSets) != 5 || asked != 1 {
		t.Errorf("selected %d, asked %d times, error %v; want 5, once, none", len(got.SidecarSets), asked, err)
	}
}

func TestStoreAnswersByName(t *testing.T) {
	older, newer := compiled(t, "b", equal("v", "1"), nil), compiled(t, "b", equal("v", "2"), nil)
	c := match.Build([]*inject.Compiled{older, compiled(t, "a", nil, nil), newer}, map[string]labels.Set{"prod": {"team": "a"}})
	if diff := cmp.Diff([]string{"a", "b"}, names(c.SidecarSets())); diff != "" {
		t.Errorf("compiled SidecarSets (-want +got):\n%s", diff)
	}
	if got, ok := c.Get("b"); !ok || got != newer {
		t.Errorf("Get(b) = %v, %v, want the later of two", got, ok)
	}
	if _, ok := c.Get("c"); ok || c.Has("c") || !c.Has("a") {
		t.Error("Get or Has is wrong about c or a")
	}
	if set, ok := c.NamespaceLabels("prod"); !ok || set["team"] != "a" {
		t.Errorf("NamespaceLabels(prod) = %v, %v", set, ok)
	}
	if _, ok := c.NamespaceLabels("test"); ok {
		t.Error("NamespaceLabels knows a Namespace that was not given")
	}
}

// A Pod that no SidecarSet selects costs no garbage.
func TestSelectOfNothingAllocatesNothing(t *testing.T) {
	rounds.NeedExactMemory(t)
	c := match.Build([]*inject.Compiled{
		compiled(t, "a", equal("app", "web"), nil),
		compiled(t, "b", equal("team", "payments"), equal(nameLabel, "test")),
		compiled(t, "c", expr("zone", "Exists"), nil),
	}, nil)
	pod := labels.Set{"app": "other", "tier": "front", "pod-template-hash": "6d5857687f", "team": "search", "app.kubernetes.io/name": "web"}
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Select("prod", pod, nil) }); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

// The index changes the cost of an answer, never the answer.
func TestIndexEqualsBruteForce(t *testing.T) {
	for seed := range uint64(rounds.Of(300, 50)) {
		r := rand.New(rand.NewPCG(seed, 1))
		var sidecarSets []*inject.Compiled
		for i := range r.IntN(40) {
			var namespaces *metav1.LabelSelector
			if r.IntN(2) == 0 {
				namespaces = randomSelector(r, nameLabel, "team")
			}
			sidecarSets = append(sidecarSets, compiled(t, fmt.Sprintf("set-%02d", i), randomSelector(r, "a", "b", "c"), namespaces))
		}
		c := match.Build(sidecarSets, nil)
		for range 20 {
			pod, namespace := randomLabels(r, "a", "b", "c"), fmt.Sprint("v", r.IntN(4))
			if r.IntN(5) == 0 {
				namespace = ""
			}
			all := randomLabels(r, "team")
			all[nameLabel] = namespace
			want, leftOut := []string{}, false
			for _, p := range sidecarSets {
				switch {
				case !p.Selector.Matches(pod):
				case p.NamespaceSelector.Matches(all):
					want = append(want, p.Name())
				default:
					leftOut = leftOut || matchesByName(p.NamespaceSelector, namespace)
				}
			}
			got, err := c.Select(namespace, pod, known(all))
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if diff := cmp.Diff(want, names(got.SidecarSets)); diff != "" {
				t.Fatalf("seed %d, Pod %v in %v (-want +got):\n%s", seed, pod, all, diff)
			}
			if got.LeftOut != leftOut {
				t.Fatalf("seed %d, Pod %v in %v: left out by labels: %v, want %v", seed, pod, all, got.LeftOut, leftOut)
			}
		}
	}
}

// matchesByName reports whether a Namespace of this name could have labels that
// match, other than that of its name.
func matchesByName(selector labels.Selector, namespace string) bool {
	requirements, selectable := selector.Requirements()
	for _, r := range requirements {
		if r.Key() == nameLabel && !r.Matches(labels.Set{nameLabel: namespace}) {
			return false
		}
	}
	return selectable
}

func randomSelector(r *rand.Rand, keys ...string) *metav1.LabelSelector {
	if r.IntN(12) == 0 {
		return nil
	}
	s := &metav1.LabelSelector{}
	for range r.IntN(4) {
		key := keys[r.IntN(len(keys))]
		switch r.IntN(5) {
		case 0:
			if s.MatchLabels == nil {
				s.MatchLabels = map[string]string{}
			}
			s.MatchLabels[key] = randomValue(r)
		case 1, 2:
			op := []metav1.LabelSelectorOperator{metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn}[r.IntN(2)]
			values := []string{randomValue(r)}
			for range r.IntN(3) {
				values = append(values, randomValue(r))
			}
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: op, Values: values})
		case 3:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists})
		case 4:
			s.MatchExpressions = append(s.MatchExpressions, metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpDoesNotExist})
		}
	}
	return s
}

func randomLabels(r *rand.Rand, keys ...string) labels.Set {
	set := labels.Set{}
	for _, key := range keys {
		if r.IntN(3) > 0 {
			set[key] = randomValue(r)
		}
	}
	return set
}

// randomValue may be empty, which is a value like any other.
func randomValue(r *rand.Rand) string {
	return []string{"", "v0", "v1", "v2", "v3"}[r.IntN(5)]
}
