package entryplan_test

import (
	"slices"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entryplan"
)

func notIn(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
}

type edit = func(*admissionregistrationv1.MutatingWebhook)

func add(requirements ...metav1.LabelSelectorRequirement) edit {
	return func(w *admissionregistrationv1.MutatingWebhook) {
		w.NamespaceSelector.MatchExpressions = append(w.NamespaceSelector.MatchExpressions, requirements...)
	}
}

// lengthen adds a namespace to each list of excluded names, and sorts it.
func lengthen(w *admissionregistrationv1.MutatingWebhook) {
	for i, r := range w.NamespaceSelector.MatchExpressions {
		if r.Key == corev1.LabelMetadataName && r.Operator == metav1.LabelSelectorOpNotIn {
			w.NamespaceSelector.MatchExpressions[i].Values = slices.Sorted(slices.Values(append(slices.Clone(r.Values), "a-cloud")))
		}
	}
}

// Clouds add requirements that leave out namespaces or Pods of theirs. The leader keeps these,
// whether a SidecarSet is stored for the entry or not, and undoes all other edits.
func TestWhatAnotherProgramLeavesOutIsCarriedAlong(t *testing.T) {
	selective := sidecarSet("log", "web")
	selective.Spec.NamespaceSelector = &metav1.LabelSelector{
		MatchLabels:      map[string]string{"env": "prod"},
		MatchExpressions: []metav1.LabelSelectorRequirement{notIn(corev1.LabelMetadataName, "mine"), notIn("tier", "x")},
	}
	tests := map[string]struct {
		edit edit
		told string // "" if the edit is undone
	}{
		"two requirements": {add(notIn("control-plane", "true"), notIn("kubernetes.azure.com/managedby", "aks")), "namespaces by control-plane notin (true),kubernetes.azure.com/managedby notin (aks)"},
		"a label":          {add(metav1.LabelSelectorRequirement{Key: "control-plane", Operator: metav1.LabelSelectorOpDoesNotExist}), "namespaces by !control-plane"},
		"a requirement before ours": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.NamespaceSelector.MatchExpressions = slices.Insert(w.NamespaceSelector.MatchExpressions, 0, notIn("purpose", "system"))
		}, "namespaces by purpose notin (system)"},
		"names of namespaces": {lengthen, "namespaces by kubernetes.io/metadata.name notin (a-cloud)"},
		"Pods": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.ObjectSelector.MatchExpressions = append(w.ObjectSelector.MatchExpressions, notIn("managed-by", "gardener"))
		}, "Pods by managed-by notin (gardener)"},
		"one that wants a label": {add(exists("injected")), ""},
		"one that wants a value": {add(in("injected", "yes")), ""},
		"our list is shorter": {func(w *admissionregistrationv1.MutatingWebhook) {
			r := w.NamespaceSelector.MatchExpressions
			r[len(r)-1].Values = r[len(r)-1].Values[1:]
		}, ""},
		"our list is gone": {func(w *admissionregistrationv1.MutatingWebhook) { w.NamespaceSelector.MatchExpressions = nil }, ""},
		"another label": {func(w *admissionregistrationv1.MutatingWebhook) {
			w.NamespaceSelector.MatchLabels = map[string]string{"env": "dev"}
		}, ""},
		"narrower, and another policy": {func(w *admissionregistrationv1.MutatingWebhook) {
			lengthen(w)
			w.MatchPolicy = new(admissionregistrationv1.Exact)
		}, "namespaces by kubernetes.io/metadata.name notin (a-cloud)"},
	}
	for name, tc := range tests {
		for whose, set := range map[string]*appsv1beta1.SidecarSet{"one label": sidecarSet("log", "web"), "namespaces": selective} {
			t.Run(name+" for "+whose, func(t *testing.T) {
				e := entryOf(t, set)
				l, _ := settle(t, calm(bare(), e))
				i, at, _ := l.Locate(e.Name)
				l[i] = l[i].DeepCopy()
				tc.edit(&l[i].Webhooks[at])
				edited := l[i].Webhooks[at].DeepCopy()
				if told := l.Narrowing(e, settings()).By; tc.told != "" && told != tc.told {
					t.Errorf("it says %q, want %q", told, tc.told)
				}
				// While the SidecarSet is not known, the entry must not go: it may be on its way.
				on := calm(l)
				unsettled(&on)
				plan := entryplan.Next(on, settings())
				if w := webhookOf(carryOut(l, plan.Changes), e.Name); tc.told != "" && !strings.Contains(name, "policy") && (w == nil || len(plan.Foreign) > 0) {
					t.Errorf("without a SidecarSet the entry is %v, foreign are %v", w, plan.Foreign)
				}
				after, _ := settle(t, calm(l, e))
				w := webhookOf(after, e.Name)
				same := isEqual(w.NamespaceSelector, edited.NamespaceSelector) && isEqual(w.ObjectSelector, edited.ObjectSelector)
				if same != (tc.told != "") || *w.MatchPolicy != admissionregistrationv1.Equivalent {
					t.Errorf("the entry is\n%v, and was edited to\n%v", w, edited)
				}
				// A later write carries it along.
				again := calm(after, e)
				claimed(&again)
				after = carryOut(after, entryplan.Next(again, settings()).Changes)
				if now := webhookOf(after, e.Name); !isEqual(now.NamespaceSelector, w.NamespaceSelector) || !isEqual(now.ObjectSelector, w.ObjectSelector) {
					t.Errorf("a later write has made it\n%v of\n%v", now, w)
				}
			})
		}
	}
}

func isEqual(a, b *metav1.LabelSelector) bool {
	return metav1.FormatLabelSelector(a) == metav1.FormatLabelSelector(b)
}

// An entry of one SidecarSet may look like a narrowed one of another. A review must not take it
// for that: API servers would not call the operator for all Pods of the other one.
func TestAReviewTakesNoNarrowerEntryForItsOwn(t *testing.T) {
	narrow := inNamespaces(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{notIn("env", "dev")}})
	l, _ := settle(t, calm(bare(), entryOf(t, narrow)))
	e := entryOf(t, sidecarSet("all", "web"))
	if i, ok := l.Serves(e, settings()); ok {
		t.Errorf("%s serves it", l[i].Name)
	}
	changes, _ := widen(l, []entryplan.Entry{e}, settings())
	l = carryOut(l, changes)
	if _, ok := l.Serves(e, settings()); !ok {
		t.Errorf("nothing serves it after %v", changes)
	}
}

// A namespace that an administrator excludes no more is no addition of another program.
func TestAnEntryFollowsTheExcludedNamespaces(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	l, _ := settle(t, calm(bare(), e))
	i, at, _ := l.Locate(e.Name)
	l[i] = l[i].DeepCopy()
	lengthen(&l[i].Webhooks[at])
	for _, tc := range [][]string{{"kube-system", "ours", "more"}, {"ours"}, {"kube-system", "ours"}} {
		s := settings()
		s.ExcludedNamespaces = tc
		l = carryOut(l, entryplan.Next(calm(l, e), s).Changes)
		r := webhookOf(l, e.Name).NamespaceSelector.MatchExpressions
		if got, want := slices.Sorted(slices.Values(r[0].Values)), slices.Sorted(slices.Values(append(tc, "a-cloud"))); len(r) != 1 || !slices.Equal(got, want) {
			t.Errorf("it excludes %v, want %v", r, want)
		}
	}
	delete(l[i].Annotations, "sidecarset.io/excluded-namespaces") // as an earlier version has left it
	l, _ = settle(t, calm(l, e))
	if got := l.Narrowing(e, settings()).By; got != "" {
		t.Errorf("what is not known to be of another program is kept: %s", got)
	}
}

// The barrier is an entry, too.
func TestTheBarrierMayBeNarrowed(t *testing.T) {
	e := entryOf(t, sidecarSet("log", "web"))
	l, _ := settle(t, calm(bare(), e))
	i, _, _ := l.Locate(e.Name)
	l[i] = l[i].DeepCopy()
	for at := range l[i].Webhooks {
		add(notIn("control-plane", "true"))(&l[i].Webhooks[at])
	}
	if plan := entryplan.Next(calm(l, e), settings()); len(plan.Changes) > 0 || len(plan.Foreign) > 0 {
		t.Errorf("changes %v, foreign %v", plan.Changes, plan.Foreign)
	}
	again := calm(l, e)
	claimed(&again)
	l = carryOut(l, entryplan.Next(again, settings()).Changes)
	for _, w := range l[i].Webhooks {
		if !strings.Contains(metav1.FormatLabelSelector(w.NamespaceSelector), "control-plane notin (true)") {
			t.Errorf("a later write has undone it in %s", w.Name)
		}
	}
}

// narrow is what the program of a cloud does to all entries.
func (w *world) narrow() {
	leaveOut := []edit{add(notIn("control-plane", "true")), lengthen}[w.rng.IntN(2)]
	for i, c := range w.stored {
		if c == nil || len(c.Webhooks) == 0 {
			continue
		}
		c = c.DeepCopy()
		for at := range c.Webhooks {
			if s := c.Webhooks[at].NamespaceSelector; s != nil && len(s.MatchExpressions) < 4 {
				leaveOut(&c.Webhooks[at])
			}
		}
		w.put(i, c)
	}
}
