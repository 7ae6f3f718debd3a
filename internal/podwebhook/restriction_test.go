package podwebhook_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
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
		"two requirements": {add(notIn("control-plane", "true"), metav1.LabelSelectorRequirement{Key: "a-cloud", Operator: metav1.LabelSelectorOpDoesNotExist}), "namespaces by !a-cloud,control-plane notin (true)", false},
		"a requirement before ours": {func(w *webhook) {
			w.NamespaceSelector.MatchExpressions = slices.Insert(w.NamespaceSelector.MatchExpressions, 0, notIn("purpose", "system"))
		}, "namespaces by purpose notin (system)", false},
		"names of namespaces": {lengthen, "namespaces by kubernetes.io/metadata.name notin (a-cloud)", false},
		"Pods": {func(w *webhook) {
			w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("managed-by", "gardener"))
		}, "Pods by managed-by notin (gardener)", false},
		"one that wants a label": {add(exists("injected")), "", true},
		"our list is shorter": {func(w *webhook) {
			r := w.NamespaceSelector.MatchExpressions
			r[len(r)-1].Values = r[len(r)-1].Values[1:]
		}, "", true},
		"another label": {func(w *webhook) { w.NamespaceSelector.MatchLabels = map[string]string{"env": "dev"} }, "", true},
		"narrower, and another policy": {func(w *webhook) {
			lengthen(w)
			w.MatchPolicy = new(admissionregistrationv1.Exact)
		}, "namespaces by kubernetes.io/metadata.name notin (a-cloud)", true},
	}
	for name, tc := range tests {
		for whose, set := range map[string]*appsv1beta1.SidecarSet{"one label": sidecarSet("log", "web"), "namespaces": selective} {
			t.Run(name+" for "+whose, func(t *testing.T) {
				e := podWebhook(t, set)
				c := holding(t, e).Object.DeepCopy()
				c.ResourceVersion = "900"
				for i := range c.Webhooks {
					if c.Webhooks[i].Name == e.Name {
						tc.edit(&c.Webhooks[i])
					}
				}
				s := parsed(t, c)
				present := webhookOf(s, e.Name)
				if told := s.Restriction(&e).By; tc.told != "" && told != tc.told {
					t.Errorf("it tells %q, want %q", told, tc.told)
				}
				if s.Has(&e, settings()) == tc.wrong {
					t.Errorf("as it should be: %v", !tc.wrong)
				}
				after := stored(t, s.Reconcile([]podwebhook.Webhook{e}, nil, true, settings()).Next)
				w := webhookOf(after, e.Name)
				if same := equality.Semantic.DeepEqual(w.NamespaceSelector, present.NamespaceSelector) && equality.Semantic.DeepEqual(w.ObjectSelector, present.ObjectSelector); same != (tc.told != "") || !after.Has(&e, settings()) {
					t.Errorf("the leader makes it\n%v of\n%v", w, present)
				}
				if unwanted := s.Reconcile(nil, nil, true, settings()); webhookOf(stored(t, unwanted.Next), e.Name) == nil || len(unwanted.Foreign) > 0 {
					t.Errorf("while it has a dependency, it is gone; foreign are %v", unwanted.Foreign)
				}
				next, refused := s.Review([]podwebhook.Webhook{e}, all, 0, settings())
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

// Clouds add to all webhooks of an object. What they add to the probe stays as well, also when its
// serials change.
func TestTheProbeMayBeNarrowed(t *testing.T) {
	t.Parallel()
	e := podWebhook(t, sidecarSet("log", "web"))
	s := edited(t, holding(t, e), func(c *configuration) {
		for i := range c.Webhooks {
			w := &c.Webhooks[i]
			add(notIn("control-plane", "true"))(w)
			w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("managed-by", "gardener"))
		}
	})
	if p := s.Reconcile([]podwebhook.Webhook{e}, nil, false, settings()); p.Next != nil || len(p.Foreign) > 0 {
		t.Errorf("the leader writes %v, foreign are %v", p.Next, p.Foreign)
	}
	s = stored(t, s.Reconcile([]podwebhook.Webhook{e}, nil, true, settings()).Next)
	for _, w := range s.Object.Webhooks {
		if !strings.Contains(metav1.FormatLabelSelector(w.NamespaceSelector), "control-plane notin (true)") || !strings.Contains(metav1.FormatLabelSelector(w.ObjectSelector), "managed-by notin (gardener)") {
			t.Errorf("a later write has undone it in %v", w)
		}
	}
}

// A namespace that an administrator excludes no more is no addition of another program. A review
// by a replica with other settings changes no selector.
func TestWebhooksFollowTheExcludedNamespaces(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 3, 2)
	e, other := podWebhook(t, sidecarSet("log", apps[0])), podWebhook(t, sidecarSet("other", apps[1]))
	s := edited(t, holding(t, e), func(c *configuration) { lengthen(&c.Webhooks[0]) })
	excludes := func(name string) string {
		return metav1.FormatLabelSelector(webhookOf(s, name).NamespaceSelector)
	}
	for _, tc := range []struct {
		excluded      []string
		before, other string
		after         string
	}{
		{[]string{"kube-system", "ours", "more"}, "a-cloud,kube-system,ours", "kube-system,ours", "a-cloud,kube-system,more,ours"},
		{[]string{"ours"}, "a-cloud,kube-system,more,ours", "kube-system,more,ours", "a-cloud,ours"},
	} {
		settings := settings()
		settings.ExcludedNamespaces = tc.excluded
		next, _ := s.Review([]podwebhook.Webhook{e, other}, none, 0, settings)
		s = stored(t, next)
		if before, beside := excludes(e.Name), excludes(other.Name); !strings.HasSuffix(before, "("+tc.before+")") || !strings.HasSuffix(beside, "("+tc.other+")") {
			t.Errorf("after a review it excludes %s, and a new webhook %s", before, beside)
		}
		s = stored(t, s.Reconcile([]podwebhook.Webhook{e}, s.DropAll(), false, settings).Next)
		if !strings.HasSuffix(excludes(e.Name), "("+tc.after+")") || !s.Has(&e, settings) || s.Restriction(&e).By != "namespaces by kubernetes.io/metadata.name notin (a-cloud)" {
			t.Errorf("it excludes %s, and tells %q", excludes(e.Name), s.Restriction(&e).By)
		}
	}
}
