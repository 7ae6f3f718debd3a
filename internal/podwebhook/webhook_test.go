package podwebhook_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podwebhook"
)

func TestSidecarSetsWithEqualSelectorsShareAnWebhook(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		a, b *appsv1beta1.SidecarSet
		same bool
	}{
		"another name is the same":                    {sidecarSet("a", "web"), sidecarSet("b", "web"), true},
		"values in another order are":                 {selecting(in("app", "a", "b")), selecting(in("app", "b", "a")), true},
		"requirements in another order are":           {selecting(in("app", "a"), exists("tier")), selecting(exists("tier"), in("app", "a")), true},
		"two of a key and an operator in another too": {selecting(in("app", "a"), in("app", "b")), selecting(in("app", "b"), in("app", "a")), true},
		"an empty namespace selector is none":         {inNamespaces(&metav1.LabelSelector{}), sidecarSet("log", "web"), true},
		"another value is not":                        {sidecarSet("a", "web"), sidecarSet("a", "db"), false},
		"another namespace selector is not":           {inNamespaces(&metav1.LabelSelector{MatchLabels: map[string]string{"env": "prod"}}), sidecarSet("log", "web"), false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			before := tc.a.DeepCopy()
			a, b := podWebhook(t, tc.a), podWebhook(t, tc.b)
			if same := a.Name == b.Name && cmp.Equal(a.Selector, b.Selector) && cmp.Equal(a.NamespaceSelector, b.NamespaceSelector); same != tc.same {
				t.Errorf("webhooks\n%v\n%v, want the same: %v", a, b, tc.same)
			}
			if diff := cmp.Diff(before, tc.a); diff != "" {
				t.Errorf("Of changed the SidecarSet (-before +after):\n%s", diff)
			}
		})
	}
}

func TestAnnotationsGivePolicyAndTimeout(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		key, value string
		policy     admissionregistrationv1.FailurePolicyType
		seconds    int32
	}{
		"Ignore is taken":           {appsv1beta1.AnnotationFailurePolicy, "Ignore", admissionregistrationv1.Ignore, 5},
		"an unknown policy is Fail": {appsv1beta1.AnnotationFailurePolicy, "ignore", admissionregistrationv1.Fail, 5},
		"30 s are taken":            {appsv1beta1.AnnotationTimeoutSeconds, "30", admissionregistrationv1.Fail, 30},
		"31 s are the default":      {appsv1beta1.AnnotationTimeoutSeconds, "31", admissionregistrationv1.Fail, 5},
		"a duration is the default": {appsv1beta1.AnnotationTimeoutSeconds, "10s", admissionregistrationv1.Fail, 5},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if e := podWebhook(t, annotated(tc.key, tc.value)); e.FailurePolicy != tc.policy || e.TimeoutSeconds != tc.seconds {
				t.Errorf("got %s, %d s; want %s, %d s", e.FailurePolicy, e.TimeoutSeconds, tc.policy, tc.seconds)
			}
		})
	}
}

func TestOfNamesTheFieldThatIsWrong(t *testing.T) {
	t.Parallel()
	broken := metav1.LabelSelectorRequirement{Key: "zone", Operator: "Sometimes", Values: []string{"a"}}
	tests := map[string]struct {
		set  *appsv1beta1.SidecarSet
		want string
	}{
		"no selector":                       {selecting(), "spec.selector: Required"},
		"an unknown operator, at its place": {selecting(broken, exists("app")), "spec.selector.matchExpressions[0].operator"},
		"a value that is no label value":    {sidecarSet("log", "not a value"), "spec.selector.matchLabels"},
		"a selector of namespaces":          {inNamespaces(&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{exists("a b")}}), "spec.namespaceSelector.matchExpressions[0].key"},
		"a name that is a path":             {sidecarSet("../nodes", "web"), "metadata.name"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if e, err := podwebhook.Of(tc.set); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Of = %v, %v; want an error about %s", e, err, tc.want)
			}
		})
	}
}

func TestCombineMergesWebhooks(t *testing.T) {
	t.Parallel()
	patient := annotated(appsv1beta1.AnnotationTimeoutSeconds, "9")
	patient.Name, patient.UID, patient.Annotations[appsv1beta1.AnnotationFailurePolicy] = "b", uid("b"), "Ignore"
	web, strict, db := podWebhook(t, patient), podWebhook(t, sidecarSet("a", "web")), podWebhook(t, sidecarSet("c", "db"))
	given := []podwebhook.Webhook{web, db, strict}
	shards := podwebhook.Combine(ours, given)
	merged := slices.DeleteFunc(shards[web.Shard(ours)], func(e podwebhook.Webhook) bool { return e.Name == db.Name }) // maybe in the same shard
	want := strict
	want.TimeoutSeconds, want.Dependencies = 9, []podwebhook.Dependency{{Name: "a", UID: "       a", Generation: 1}, {Name: "b", UID: "       b", Generation: 1}}
	if diff := cmp.Diff([]podwebhook.Webhook{want}, merged); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]podwebhook.Dependency{podwebhook.DependencyOf(patient)}, given[0].Dependencies); diff != "" {
		t.Errorf("Combine changed its input (-want +got):\n%s", diff)
	}
}
