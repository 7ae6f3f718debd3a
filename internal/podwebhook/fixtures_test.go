package podwebhook_test

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
	"github.com/sidecarset/operator/internal/podwebhook"
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

func podWebhook(t testing.TB, set *appsv1beta1.SidecarSet) podwebhook.Webhook {
	t.Helper()
	e, err := podwebhook.Of(set)
	if err != nil {
		t.Fatalf("Of(%s): %v", set.Name, err)
	}
	return e
}

// appsOf returns labels whose webhooks belong in a shard.
func appsOf(t testing.TB, shard, n int) (apps []string) {
	t.Helper()
	for i := 0; len(apps) < n; i++ {
		app := fmt.Sprint("app-", i)
		if e := podWebhook(t, sidecarSet("x", app)); e.Shard(ours) == shard {
			apps = append(apps, app)
		}
	}
	return apps
}

// ours is the UID of the operator's Namespace.
const ours types.UID = "uid-ours"

func settings() *podwebhook.Settings {
	return &podwebhook.Settings{
		Namespace: "ours", NamespaceUID: ours, ExcludedNamespaces: []string{"ours", "kube-system"}, Bundle: []byte("bundle"),
		Service: admissionregistrationv1.ServiceReference{Namespace: "ours", Name: "webhook"},
	}
}

// optOut is the label and the annotation of the manifests by which AKS leaves an object as it is.
const optOut = "admissions.enforcer/disabled"

// applied is a shard as an administrator applies it.
func applied(shard, version int) *configuration {
	return &configuration{ObjectMeta: metav1.ObjectMeta{
		Name: podwebhook.ConfigurationName(shard), ResourceVersion: strconv.Itoa(version),
		Labels: map[string]string{podwebhook.LabelConfiguration: "true", optOut: "true"}, Annotations: map[string]string{optOut: "true"},
	}}
}

// bare is a shard without webhooks, as the leader keeps it.
func bare(t testing.TB, shard int) *podwebhook.Shard { return bareWith(t, shard, settings()) }

func bareWith(t testing.TB, shard int, settings *podwebhook.Settings) *podwebhook.Shard {
	return stored(t, parsed(t, applied(shard, 90)).Reconcile(nil, nil, false, settings).Next)
}

func parsed(t testing.TB, c *configuration) *podwebhook.Shard {
	t.Helper()
	s, err := podwebhook.Parse(c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// stored is a shard as an API server stores it: with another resourceVersion.
func stored(t testing.TB, c *configuration) *podwebhook.Shard {
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

// edited is a shard after another program has edited it.
func edited(t testing.TB, s *podwebhook.Shard, edit func(*configuration)) *podwebhook.Shard {
	t.Helper()
	c := s.Object.DeepCopy()
	edit(c)
	return stored(t, c)
}

// holding is a shard with the webhooks of stored SidecarSets.
func holding(t testing.TB, webhooks ...podwebhook.Webhook) *podwebhook.Shard {
	t.Helper()
	shard := webhooks[0].Shard(ours)
	return stored(t, bare(t, shard).Reconcile(podwebhook.Combine(ours, webhooks)[shard], nil, false, settings()).Next)
}

func webhookOf(s *podwebhook.Shard, name string) *webhook {
	for i := range s.Object.Webhooks {
		if s.Object.Webhooks[i].Name == name {
			return &s.Object.Webhooks[i]
		}
	}
	return nil
}

func probeOf(s *podwebhook.Shard) *webhook { return webhookOf(s, s.Object.Name+".probe.sidecarset.io") }

func all(string, podwebhook.Dependency) bool  { return true }
func none(string, podwebhook.Dependency) bool { return false }

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
