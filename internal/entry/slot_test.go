package entry_test

import (
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
)

func TestSlotsAreRenderedWhole(t *testing.T) {
	t.Parallel()
	set := annotated(appsv1beta1.AnnotationFailurePolicy, "Ignore")
	set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}
	e := entryOf(t, set)
	s := stored(t, holding(t, e).Reconcile([]entry.Entry{e}, nil, keep, true, settings()).Next)
	to := func(path string) admissionregistrationv1.WebhookClientConfig {
		return admissionregistrationv1.WebhookClientConfig{
			CABundle: []byte("bundle"),
			Service:  &admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook", Path: new(path), Port: new(int32(443))},
		}
	}
	created := func(resource string) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{
			Operations: []admissionregistrationv1.OperationType{"CREATE"},
			Rule: admissionregistrationv1.Rule{
				APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource}, Scope: new(admissionregistrationv1.NamespacedScope),
			},
		}}
	}
	pods := webhook{
		Name: e.Name, ClientConfig: to(entry.PodsPath(s.Index, 100)), Rules: created("pods"),
		ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		NamespaceSelector: &metav1.LabelSelector{
			MatchLabels:      map[string]string{"env": "prod"},
			MatchExpressions: []metav1.LabelSelectorRequirement{notIn(corev1.LabelMetadataName, "kube-system", "ours")},
		},
		FailurePolicy: new(admissionregistrationv1.Ignore), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(5)),
		AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy),
	}
	barrier := webhook{
		Name: s.Object.Name + ".barrier.sidecarset.io", ClientConfig: to(entry.BarrierPath(s.Index)), Rules: created("configmaps"),
		ObjectSelector:    &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{in(entry.BarrierLabel(s.Index), "110", "100")}},
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: "ours"}},
		FailurePolicy:     new(admissionregistrationv1.Ignore), MatchPolicy: new(admissionregistrationv1.Equivalent),
		SideEffects: new(admissionregistrationv1.SideEffectClassNone), TimeoutSeconds: new(int32(1)),
		AdmissionReviewVersions: []string{"v1"}, ReinvocationPolicy: new(admissionregistrationv1.NeverReinvocationPolicy),
	}
	want := applied(s.Index, 120)
	want.Annotations["sidecarset.io/format"] = "2"
	want.Annotations["sidecarset.io/slot"] = `{"serial":"110","number":"100","earlier":[100],"needs":{"` + e.Name + `":[{"n":"log","u":"     log","g":1}]},"excluded":["kube-system","ours"]}`
	want.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "ours", UID: "uid-ours"}}
	want.Webhooks = []webhook{pods, barrier}
	if diff := cmp.Diff(want, s.Object); diff != "" {
		t.Errorf("object (-want +got):\n%s", diff)
	}
}

func TestSettingsShowInEntries(t *testing.T) {
	t.Parallel()
	e := entryOf(t, sidecarSet("log", "web"))
	tests := map[string]struct {
		change func(*entry.Settings)
		shows  func(*entry.Slot, *webhook) bool
	}{
		"a port of the Service": {func(s *entry.Settings) { s.Service.Port = new(int32(8443)) }, func(_ *entry.Slot, w *webhook) bool { return *w.ClientConfig.Service.Port == 8443 }},
		"a URL takes the place of the Service": {func(s *entry.Settings) { s.URL = "https://127.0.0.1:9443/prefix/" }, func(s *entry.Slot, w *webhook) bool {
			return w.ClientConfig.Service == nil && *w.ClientConfig.URL == "https://127.0.0.1:9443/prefix"+entry.PodsPath(s.Index, s.Number)
		}},
		"reinvocation": {func(s *entry.Settings) { s.Reinvocation = admissionregistrationv1.IfNeededReinvocationPolicy }, func(_ *entry.Slot, w *webhook) bool {
			return *w.ReinvocationPolicy == admissionregistrationv1.IfNeededReinvocationPolicy
		}},
		"no excluded namespace": {func(s *entry.Settings) { s.ExcludedNamespaces = nil }, func(_ *entry.Slot, w *webhook) bool { return len(w.NamespaceSelector.MatchExpressions) == 0 }},
		"no owner":              {func(s *entry.Settings) { s.Ownerless = true }, func(s *entry.Slot, _ *webhook) bool { return len(s.Object.OwnerReferences) == 0 }},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			settings := settings()
			tc.change(settings)
			reviewed, _ := bare(t, e.Slot()).Review([]entry.Entry{e}, none, 0, settings)
			s := stored(t, stored(t, reviewed).Reconcile([]entry.Entry{e}, nil, keep, false, settings).Next)
			if w := webhookOf(s, e.Name); !tc.shows(s, w) || !s.Says(&e, settings) {
				t.Errorf("the entry is %v", w)
			}
			if p := s.Reconcile([]entry.Entry{e}, nil, keep, false, settings); p.Next != nil {
				t.Errorf("a second pass writes %v", p.Next)
			}
		})
	}
}

func TestUnheldAreTheNeedsOfThePodsEntries(t *testing.T) {
	t.Parallel()
	apps := appsOf(t, 7, 2)
	web, db := entryOf(t, sidecarSet("web", apps[0])), entryOf(t, sidecarSet("db", apps[1]))
	both := entryOf(t, sidecarSet("both", apps[0]))
	s := holding(t, web, db, both)
	gone := edited(t, s, func(c *configuration) { c.Webhooks = nil })
	tests := map[string]struct {
		slot *entry.Slot
		pod  labels.Labels
		held string
		want []string
	}{
		"of all entries without labels":            {s, nil, "", []string{"both", "db", "web"}},
		"of those that select the Pod":             {s, labels.Set{"app": apps[0], "x": "y"}, "", []string{"both", "web"}},
		"but not those that are held":              {s, labels.Set{"app": apps[0]}, "both", []string{"web"}},
		"none of another Pod":                      {s, labels.Set{"app": "other"}, "", nil},
		"none of a Pod that has no labels":         {s, labels.Set(nil), "", nil},
		"of an entry that another program removed": {gone, labels.Set{"app": "other"}, "both", []string{"db", "web"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, n := range tc.slot.Unheld(tc.pod, func(n entry.Need) bool { return n.Name == tc.held }) {
				got = append(got, n.Name)
			}
			if slices.Sort(got); !slices.Equal(got, tc.want) {
				t.Errorf("unheld are %v, want %v", got, tc.want)
			}
		})
	}
}

func TestASlotHoldsANeedByUIDAndGeneration(t *testing.T) {
	t.Parallel()
	set := sidecarSet("log", "web")
	set.Generation = 3
	e := entryOf(t, set)
	s := holding(t, e)
	n := e.Needs[0]
	other := n
	other.UID = "other"
	for _, tc := range []struct {
		slot  *entry.Slot
		entry string
		need  entry.Need
		want  bool
	}{
		{s, e.Name, n, true},
		{s, e.Name, entry.Need{Name: n.Name, UID: n.UID, Generation: 2}, true},
		{s, e.Name, entry.Need{Name: n.Name, UID: n.UID, Generation: 4}, false},
		{s, e.Name, other, false},
		{s, "another.pods.sidecarset.io", n, false},
		{edited(t, s, func(c *configuration) { c.Webhooks = nil }), e.Name, n, false},
	} {
		if got := tc.slot.Holds(tc.entry, tc.need); got != tc.want {
			t.Errorf("%s holds %v: %v, want %v", tc.entry, tc.need, got, tc.want)
		}
		asks := e
		if asks.Needs = []entry.Need{tc.need}; tc.entry == e.Name && tc.slot.Says(&asks, settings()) != tc.want {
			t.Errorf("it says the entry with the need %v: %v", tc.need, !tc.want)
		}
	}
}

// Whatever another program changes about an entry, the leader notices it and restores it, unless it
// only leaves out more. This is so for fields that Kubernetes may add, too.
func TestEveryChangeOfAnEntryIsNoticed(t *testing.T) {
	t.Parallel()
	set := sidecarSet("log", "web")
	set.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}, MatchExpressions: []metav1.LabelSelectorRequirement{in("tier", "a", "b")}}
	e := entryOf(t, set)
	whole := holding(t, e)
	changes := 0
	for ; ; changes++ {
		c, left := whole.Object.DeepCopy(), changes
		c.ResourceVersion = "900"
		s := parsed(t, c)
		if !change(reflect.ValueOf(webhookOf(s, e.Name)).Elem(), &left) {
			break
		}
		if s.Narrowing(&e).By == "namespaces by kubernetes.io/metadata.name notin ()" {
			continue // it leaves out a namespace without a name
		}
		p := s.Reconcile([]entry.Entry{e}, nil, keep, false, settings())
		if s.Says(&e, settings()) || p.Next == nil || p.Refused[e.Name] != nil {
			t.Errorf("a change is not noticed (-before +after):\n%s", cmp.Diff(webhookOf(whole, e.Name), webhookOf(s, e.Name)))
			continue
		}
		if diff := cmp.Diff(webhookOf(whole, e.Name), webhookOf(stored(t, p.Next), e.Name)); diff != "" {
			t.Errorf("a change is not restored (-before +after):\n%s", diff)
		}
	}
	if changes < 40 {
		t.Errorf("only %d changes were tried", changes)
	}
	without := edited(t, whole, func(c *configuration) { c.Webhooks[0].ClientConfig.CABundle = nil })
	if p := without.Reconcile([]entry.Entry{e}, nil, keep, false, settings()); p.Next == nil || string(p.Next.Webhooks[0].ClientConfig.CABundle) != "bundle" {
		t.Error("a bundle that another program has removed is not restored")
	}
}

// change changes one part of a value: the one after the first left parts; false if there
// are fewer. It leaves bytes as they are: the bundle is not compared.
func change(v reflect.Value, left *int) bool {
	here := func(do func()) bool {
		*left--
		if *left >= 0 {
			return false
		}
		do()
		return true
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return here(func() { v.Set(reflect.New(v.Type().Elem())) })
		}
		return here(func() { v.SetZero() }) || change(v.Elem(), left)
	case reflect.Struct:
		for i := range v.NumField() {
			if change(v.Field(i), left) {
				return true
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return false
		}
		for i := range v.Len() {
			if change(v.Index(i), left) {
				return true
			}
		}
		return here(func() { v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem()))) })
	case reflect.Map:
		return here(func() {
			changed := reflect.MakeMap(v.Type())
			changed.SetMapIndex(reflect.ValueOf("another"), reflect.ValueOf("label"))
			v.Set(changed)
		})
	case reflect.String:
		return here(func() { v.SetString(v.String() + "x") })
	case reflect.Int32:
		return here(func() { v.SetInt(v.Int() + 1) })
	}
	return false
}
