package entry_test

import (
	"fmt"
	"strconv"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/entry"
)

type (
	configuration = admissionregistrationv1.MutatingWebhookConfiguration
	webhook       = admissionregistrationv1.MutatingWebhook
)

// sidecarSet selects Pods by app=<app>.
func sidecarSet(name, app string) *appsv1beta1.SidecarSet {
	return &appsv1beta1.SidecarSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid(name), Generation: 1},
		Spec:       appsv1beta1.SidecarSetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
	}
}

// uid is a UID that begins as no other in a test.
func uid(of string) types.UID { return types.UID(fmt.Sprintf("%8.8s-0000", of)) }

// selecting is a SidecarSet with these requirements of Pods.
func selecting(requirements ...metav1.LabelSelectorRequirement) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Spec.Selector = &metav1.LabelSelector{MatchExpressions: requirements}
	return set
}

func in(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpIn, Values: values}
}

func notIn(key string, values ...string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpNotIn, Values: values}
}

func exists(key string) metav1.LabelSelectorRequirement {
	return metav1.LabelSelectorRequirement{Key: key, Operator: metav1.LabelSelectorOpExists}
}

func annotated(key, value string) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Annotations = map[string]string{key: value}
	return set
}

func inNamespaces(selector *metav1.LabelSelector) *appsv1beta1.SidecarSet {
	set := sidecarSet("log", "web")
	set.Spec.NamespaceSelector = selector
	return set
}

func entryOf(t testing.TB, set *appsv1beta1.SidecarSet) entry.Entry {
	t.Helper()
	e, err := entry.Of(set)
	if err != nil {
		t.Fatalf("Of(%s): %v", set.Name, err)
	}
	return e
}

// appsOf returns labels whose entries belong in a slot.
func appsOf(t testing.TB, slot, n int) (apps []string) {
	t.Helper()
	for i := 0; len(apps) < n; i++ {
		app := fmt.Sprint("app-", i)
		if e := entryOf(t, sidecarSet("x", app)); e.Slot(ours) == slot {
			apps = append(apps, app)
		}
	}
	return apps
}

// ours is the UID of the operator's Namespace.
const ours types.UID = "uid-ours"

func settings() *entry.Settings {
	return &entry.Settings{
		Namespace: "ours", NamespaceUID: ours, ExcludedNamespaces: []string{"ours", "kube-system"}, Bundle: []byte("bundle"),
		Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
	}
}

// optOut is the label and the annotation of the manifests by which AKS leaves an object as it is.
const optOut = "admissions.enforcer/disabled"

// applied is a slot as an administrator applies it.
func applied(slot, version int) *configuration {
	return &configuration{ObjectMeta: metav1.ObjectMeta{
		Name: entry.ConfigurationName(slot), ResourceVersion: strconv.Itoa(version),
		Labels: map[string]string{entry.LabelConfiguration: "true", optOut: "true"}, Annotations: map[string]string{optOut: "true"},
	}}
}

// bare is a slot without entries, as the leader keeps it.
func bare(t testing.TB, slot int) *entry.Slot { return bareWith(t, slot, settings()) }

func bareWith(t testing.TB, slot int, settings *entry.Settings) *entry.Slot {
	return stored(t, parsed(t, applied(slot, 90)).Reconcile(nil, nil, false, settings).Next)
}

func parsed(t testing.TB, c *configuration) *entry.Slot {
	t.Helper()
	s, err := entry.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stored is a slot as an API server stores it: with another resourceVersion.
func stored(t testing.TB, c *configuration) *entry.Slot {
	t.Helper()
	if c == nil {
		t.Fatal("nothing is written")
	}
	if err := valid(c); err != nil {
		t.Fatalf("an API server would refuse it: %v", err)
	}
	version, err := strconv.Atoi(c.ResourceVersion)
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.ResourceVersion = strconv.Itoa(version + 10)
	return parsed(t, c)
}

// edited is a slot after another program has edited it.
func edited(t testing.TB, s *entry.Slot, edit func(*configuration)) *entry.Slot {
	t.Helper()
	c := s.Object.DeepCopy()
	edit(c)
	return stored(t, c)
}

// holding is a slot with the entries of stored SidecarSets.
func holding(t testing.TB, entries ...entry.Entry) *entry.Slot {
	t.Helper()
	slot := entries[0].Slot(ours)
	return stored(t, bare(t, slot).Reconcile(entry.Combine(ours, entries)[slot], nil, false, settings()).Next)
}

func webhookOf(s *entry.Slot, name string) *webhook {
	for i := range s.Object.Webhooks {
		if s.Object.Webhooks[i].Name == name {
			return &s.Object.Webhooks[i]
		}
	}
	return nil
}

func barrierOf(s *entry.Slot) *webhook { return webhookOf(s, s.Object.Name+".barrier.sidecarset.io") }

func all(string, entry.Need) bool  { return true }
func none(string, entry.Need) bool { return false }

// valid returns why an API server would refuse an object: what depends on what was written before.
func valid(c *configuration) error {
	errs := apivalidation.ValidateObjectMeta(&c.ObjectMeta, false, apivalidation.NameIsDNSSubdomain, field.NewPath("metadata"))
	names := map[string]bool{}
	for i := range c.Webhooks {
		w, at := &c.Webhooks[i], field.NewPath("webhooks").Index(i)
		if names[w.Name] {
			errs = append(errs, field.Duplicate(at, w.Name))
		}
		names[w.Name] = true
		errs = append(errs, metavalidation.ValidateLabelSelector(w.NamespaceSelector, metavalidation.LabelSelectorValidationOptions{}, at)...)
		errs = append(errs, metavalidation.ValidateLabelSelector(w.ObjectSelector, metavalidation.LabelSelectorValidationOptions{}, at)...)
	}
	if size := c.Size(); size > 1_500_000 {
		errs = append(errs, field.TooLong(field.NewPath(""), size, 1_500_000))
	}
	return errs.ToAggregate()
}
