package entry_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
)

type edit = func(*webhook)

func add(requirements ...metav1.LabelSelectorRequirement) edit {
	return func(w *webhook) {
		w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions, requirements...)
	}
}

// lengthen adds a namespace to each list of excluded names, and sorts it.
func lengthen(w *webhook) {
	for i, r := range w.NamespaceSelector.MatchExpressions {
		if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpNotIn {
			w.NamespaceSelector.MatchExpressions[i].Values = slices.Sorted(slices.Values(append(slices.Clone(r.Values), "a-cloud")))
		}
	}
}

// Clouds add requirements that leave out namespaces or Pods of theirs. All writes keep these, and
// the leader undoes all other edits.
func TestWhatAnotherProgramLeavesOutIsCarriedAlong(t *testing.T) {
	t.Parallel()
	selective := sidecarSet("log", "web")
	selective.Spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels:      map[string]string{"env": "prod"},
		MatchExpressions: []metav1.LabelSelectorRequirement{notIn(corev1.LabelMetadataName, "mine"), notIn("tier", "x")},
	}
	tests := map[string]struct {
		edit  edit
		told  string // "" if the edit is undone
		wrong bool   // another part of the edit is undone
	}{
		"two requirements": {add(notIn("control-plane", "true"), notIn("kubernetes.azure.com/managedby", "aks")), "namespaces by control-plane notin (true),kubernetes.azure.com/managedby notin (aks)", false},
		"a label":          {add(metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpDoesNotExist}), "namespaces by !control-plane", false},
		"a requirement before ours": {func(w *webhook) {
			w.NamespaceSelector.MatchExpressions = slices.Insert(w.NamespaceSelector.MatchExpressions, 0, notIn("purpose", "system"))
		}, "namespaces by purpose notin (system)", false},
		"names of namespaces": {lengthen, "namespaces by kubernetes.io/metadata.name notin (a-cloud)", false},
		"Pods": {func(w *webhook) {
			w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("managed-by", "gardener"))
		}, "Pods by managed-by notin (gardener)", false},
		"one that wants a label": {add(exists("injected")), "", true},
		"one that wants a value": {add(in("injected", "yes")), "", true},
		"our list is shorter": {func(w *webhook) {
			r := w.NamespaceSelector.MatchExpressions
			r[len(r)-1].Values = r[len(r)-1].Values[1:]
		}, "", true},
		"our list is gone": {func(w *webhook) { w.NamespaceSelector.MatchExpressions = nil }, "", true},
		"another label":    {func(w *webhook) { w.NamespaceSelector.MatchLabels = map[string]string{"env": "dev"} }, "", true},
		"narrower, and another policy": {func(w *webhook) {
			lengthen(w)
			w.MatchPolicy = new(admissionregistrationv1.Exact)
		}, "namespaces by kubernetes.io/metadata.name notin (a-cloud)", true},
	}
	for name, tc := range tests {
		for whose, set := range map[string]*appsv1beta1.SidecarSet{"one label": sidecarSet("log", "web"), "namespaces": selective} {
			t.Run(name+" for "+whose, func(t *testing.T) {
				e := entryOf(t, set)
				before := holding(t, e)
				c := before.Object.DeepCopy()
				c.ResourceVersion = "900"
				for i := range c.Webhooks {
					if c.Webhooks[i].Name == e.Name {
						tc.edit(&c.Webhooks[i])
					}
				}
				s := parsed(t, c)
				present := webhookOf(s, e.Name)
				if told := s.Narrowing(&e).By; tc.told != "" && told != tc.told {
					t.Errorf("it tells %q, want %q", told, tc.told)
				}
				if s.Says(&e, settings()) == tc.wrong {
					t.Errorf("as it should be: %v", !tc.wrong)
				}
				after := stored(t, s.Reconcile([]entry.Entry{e}, nil, keep, true, settings()).Next)
				w := webhookOf(after, e.Name)
				if same := equality.Semantic.DeepEqual(w.NamespaceSelector, present.NamespaceSelector) && equality.Semantic.DeepEqual(w.ObjectSelector, present.ObjectSelector); same != (tc.told != "") || !after.Says(&e, settings()) {
					t.Errorf("the leader makes it\n%v of\n%v", w, present)
				}
				if unwanted := s.Reconcile(nil, nil, keep, true, settings()); webhookOf(stored(t, unwanted.Next), e.Name) == nil || len(unwanted.Foreign) > 0 {
					t.Errorf("while it has a need, it is gone; foreign are %v", unwanted.Foreign)
				}
				next, refused := s.Review([]entry.Entry{e}, all, 0, settings())
				if (next == nil) != tc.wrong || (refused[e.Name] != nil) != tc.wrong {
					t.Fatalf("a review writes %v, refused are %v", next, refused)
				}
				if next != nil && !equality.Semantic.DeepEqual(webhookOf(stored(t, next), e.Name).NamespaceSelector, present.NamespaceSelector) {
					t.Errorf("a review has changed it to %v", webhookOf(stored(t, next), e.Name))
				}
			})
		}
	}
}

// Clouds add to all webhooks of an object. What they add to the barrier stays as well, also when its
// serials change.
func TestACloudMayNarrowTheBarrier(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("log", "web"))
	c := holding(t, e).Object.DeepCopy()
	c.ResourceVersion = "900"
	for i := range c.Webhooks {
		w := &c.Webhooks[i]
		w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions, notIn("purpose", "system"))
		w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("managed-by", "gardener"))
	}
	s := parsed(t, c)
	if next := s.Reconcile([]entry.Entry{e}, nil, keep, false, settings()).Next; next != nil {
		t.Errorf("the leader writes %v", next.Webhooks)
	}
	next := s.Reconcile([]entry.Entry{e}, nil, keep, true, settings()).Next
	for i, w := range next.Webhooks {
		if !slices.ContainsFunc(w.ObjectSelector.MatchExpressions, func(r metav1.LabelSelectorRequirement) bool { return r.Key == "managed-by" }) {
			t.Errorf("%s is %v, was %v", w.Name, w.ObjectSelector, c.Webhooks[i].ObjectSelector)
		}
	}
}

// A namespace that an administrator excludes no more is no addition of another program. A review
// by a replica with other settings changes no selector.
func TestEntriesFollowTheExcludedNamespaces(t *testing.T) {
	t.Parallel()
	e, other := entryOf(t, sidecarSet("log", "web")), entry.Entry{}
	for _, app := range appsOf(t, e.Slot(), 2) {
		if other = entryOf(t, sidecarSet("other", app)); other.Name != e.Name {
			break
		}
	}
	s := edited(t, holding(t, e), func(c *configuration) {
		for i := range c.Webhooks {
			lengthen(&c.Webhooks[i])
		}
	})
	excludes := func(name string) []string {
		t.Helper()
		r := webhookOf(s, name).NamespaceSelector.MatchExpressions
		if len(r) != 1 {
			t.Fatalf("%s has the requirements %v", name, r)
		}
		return slices.Sorted(slices.Values(r[0].Values))
	}
	for _, excluded := range [][]string{{"kube-system", "ours", "more"}, {"ours"}, {"kube-system", "ours"}} {
		settings := settings()
		before := excludes(e.Name)
		settings.ExcludedNamespaces = excluded
		next, refused := s.Review([]entry.Entry{e, other}, none, 0, settings)
		if len(refused) > 0 {
			t.Fatalf("refused are %v", refused)
		}
		if s = stored(t, next); !slices.Equal(excludes(e.Name), before) {
			t.Errorf("a review has made it exclude %v, and it was %v", excludes(e.Name), before)
		}
		if with := append(excludes(other.Name), "a-cloud"); !slices.Equal(slices.Compact(slices.Sorted(slices.Values(with))), before) {
			t.Errorf("a review has added an entry that excludes %v beside one that excludes %v", with, before)
		}
		read := s.Object.DeepCopy()
		p := s.Reconcile([]entry.Entry{e}, nil, keep, false, settings)
		if !equality.Semantic.DeepEqual(read, s.Object) {
			t.Errorf("what was read is changed to %v", s.Object)
		}
		if p.Next != nil {
			s = stored(t, p.Next)
		}
		if want := slices.Sorted(slices.Values(append(excluded, "a-cloud"))); !slices.Equal(excludes(e.Name), want) {
			t.Errorf("it excludes %v, want %v", excludes(e.Name), want)
		}
		if s.Says(&e, settings) != true || s.Narrowing(&e).By != "namespaces by kubernetes.io/metadata.name notin (a-cloud)" {
			t.Errorf("it tells %q", s.Narrowing(&e).By)
		}
	}
}

// The barrier is an entry, too.
func TestTheBarrierMayBeNarrowed(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("log", "web"))
	before := holding(t, e)
	c := before.Object.DeepCopy()
	c.ResourceVersion = "900"
	for i := range c.Webhooks {
		add(notIn("control-plane", "true"))(&c.Webhooks[i])
		c.Webhooks[i].ClientConfig.CABundle = []byte("another")
	}
	s := parsed(t, c)
	if p := s.Reconcile([]entry.Entry{e}, nil, keep, false, settings()); p.Next != nil || len(p.Foreign) > 0 {
		t.Errorf("the leader writes %v, foreign are %v", p.Next, p.Foreign)
	}
	s = stored(t, s.Reconcile([]entry.Entry{e}, nil, keep, true, settings()).Next)
	for _, w := range s.Object.Webhooks {
		if !strings.Contains(metav1.FormatLabelSelector(w.NamespaceSelector), "control-plane notin (true)") || string(w.ClientConfig.CABundle) != "another" {
			t.Errorf("a later write has undone it in %s", w.Name)
		}
	}
}
