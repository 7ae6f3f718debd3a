package controllers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// guard is a requiredPolicy, and what is installed.
type guard struct {
	*requiredPolicy
	api    client.Client
	reads  int
	failed error
	now    time.Time
	status appsv1beta1.SidecarSetStatus
}

func newGuard(t *testing.T) *guard {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := admissionregistrationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	g := &guard{now: time.Unix(1_000_000, 0), status: appsv1beta1.SidecarSetStatus{ObservedGeneration: 7}}
	g.api = fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
			g.reads++
			if g.failed != nil {
				return g.failed
			}
			return c.Get(ctx, key, object, options...)
		},
	}).Build()
	var err error
	if g.requiredPolicy, err = newRequiredPolicy(g.api, []string{"sidecarset-system", "kube-system"}); err != nil {
		t.Fatal(err)
	}
	for _, object := range []client.Object{g.policy, g.bindings["true"], g.bindings["warn"]} {
		if err := g.api.Create(t.Context(), object.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
	}
	return g
}

// after judges a SidecarSet with this value of the label after a minute.
func (g *guard) after(t *testing.T, value string) (*metav1.Condition, error) {
	t.Helper()
	g.now = g.now.Add(recheck)
	err := g.judge(t.Context(), map[string]string{appsv1beta1.LabelRequired: value}, &g.status, g.now)
	return meta.FindStatusCondition(g.status.Conditions, appsv1beta1.ConditionRequired), err
}

func (g *guard) want(t *testing.T, value string, status metav1.ConditionStatus, reason, message string) {
	t.Helper()
	c, err := g.after(t, value)
	if err != nil || c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) || c.ObservedGeneration != 7 {
		t.Errorf("condition %+v, %v; want %s, %s, %q", c, err, status, reason, message)
	}
}

func edit[T client.Object](t *testing.T, g *guard, object T, change func(T)) {
	t.Helper()
	if err := g.api.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
		t.Fatal(err)
	}
	change(object)
	if err := g.api.Update(t.Context(), object); err != nil {
		t.Fatal(err)
	}
}

func TestTheConditionSaysWhetherThePolicyIsBound(t *testing.T) {
	const bound, missing, modified = appsv1beta1.ReasonPolicyBound, appsv1beta1.ReasonPolicyMissing, appsv1beta1.ReasonPolicyModified
	g := newGuard(t)
	g.want(t, "true", metav1.ConditionTrue, bound, "refuse Pods")
	g.want(t, "warn", metav1.ConditionTrue, bound, "warn of Pods")
	g.want(t, "yes", metav1.ConditionFalse, modified, `the value "yes": use true or warn`)

	policy := g.policy.DeepCopy()
	edit(t, g, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		p.Spec.MatchConstraints.NamespaceSelector.MatchExpressions[0].Values = []string{"sidecarset-system", "kube-system"}
	})
	g.want(t, "true", metav1.ConditionTrue, bound, "")
	edit(t, g, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		p.Spec.MatchConstraints.NamespaceSelector.MatchExpressions[0].Values = []string{"a", "sidecarset-system"}
	})
	g.want(t, "true", metav1.ConditionFalse, modified, "leaves out the namespaces a, sidecarset-system, and the operator injects no Pods in kube-system, sidecarset-system")
	edit(t, g, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		p.Spec = *g.policy.Spec.DeepCopy()
		p.Spec.FailurePolicy = new(admissionregistrationv1.Fail)
	})
	g.want(t, "warn", metav1.ConditionFalse, modified, "sidecarset-required is not that of this version")
	edit(t, g, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) {
		p.Spec = *g.policy.Spec.DeepCopy()
		p.Spec.MatchConstraints.NamespaceSelector = nil
	})
	g.want(t, "warn", metav1.ConditionFalse, modified, "sidecarset-required is not that of this version")
	edit(t, g, policy, func(p *admissionregistrationv1.ValidatingAdmissionPolicy) { p.Spec = *g.policy.Spec.DeepCopy() })

	edit(t, g, g.bindings["true"].DeepCopy(), func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) {
		b.Spec.ValidationActions = []admissionregistrationv1.ValidationAction{admissionregistrationv1.Audit}
	})
	g.want(t, "true", metav1.ConditionFalse, modified, "ValidatingAdmissionPolicyBinding sidecarset-required is not")
	g.want(t, "warn", metav1.ConditionTrue, bound, "")
	for _, object := range []client.Object{g.bindings["warn"], g.policy} {
		if err := g.api.Delete(t.Context(), object.DeepCopyObject().(client.Object)); err != nil {
			t.Fatal(err)
		}
		g.want(t, "warn", metav1.ConditionFalse, missing, "there is no "+kindOf(object)+" "+object.GetName()+": apply config/required")
	}

	g.failed = errors.New("timed out")
	if c, err := g.after(t, "warn"); err == nil || c == nil || c.Reason != missing {
		t.Errorf("with a failing API server: %+v, %v; want the condition of before, and an error", c, err)
	}
	if err := g.judge(t.Context(), nil, &g.status, g.now); err != nil || len(g.status.Conditions) > 0 {
		t.Errorf("without the label: %v, %v", g.status.Conditions, err)
	}
}

func kindOf(object client.Object) string { return object.GetObjectKind().GroupVersionKind().Kind }

// However many SidecarSets are required, the API server is asked for three objects a minute, and
// for none without a required SidecarSet.
func TestThePolicyIsReadOnceAMinute(t *testing.T) {
	g := newGuard(t)
	for range 10 {
		if err := g.judge(t.Context(), nil, &g.status, g.now); err != nil {
			t.Fatal(err)
		}
	}
	if g.reads != 0 {
		t.Errorf("%d reads without a required SidecarSet", g.reads)
	}
	for range 10 {
		for _, value := range []string{"true", "warn"} {
			if err := g.judge(t.Context(), map[string]string{appsv1beta1.LabelRequired: value}, &g.status, g.now); err != nil {
				t.Fatal(err)
			}
		}
	}
	if g.reads != 3 {
		t.Errorf("%d reads, want 3", g.reads)
	}
}
