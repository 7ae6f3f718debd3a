package controllers

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/config"
)

// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=validatingadmissionpolicies,resourceNames=sidecarset-required,verbs=get
// +kubebuilder:rbac:roleName=sidecarset-controller,groups=admissionregistration.k8s.io,resources=validatingadmissionpolicybindings,resourceNames=sidecarset-required;sidecarset-required-warn,verbs=get

// requiredPolicy reports whether config/required is installed. It reads the three objects when a
// required SidecarSet is reconciled, at most once per requiredAge. It is safe for concurrent use.
type requiredPolicy struct {
	reader   client.Reader // of the API server
	policy   *admissionregistrationv1.ValidatingAdmissionPolicy
	bindings map[string]*admissionregistrationv1.ValidatingAdmissionPolicyBinding // by value of the label
	excluded []string                                                             // namespaces, sorted

	mu      sync.Mutex
	read    time.Time                   // zero if the last attempt failed
	results map[string]metav1.Condition // by value of the label
}

// requiredAge is shorter than recheck, so that each look at a SidecarSet finds new results.
const requiredAge = recheck / 2

// newRequiredPolicy returns an error only if the embedded manifests cannot be read.
func newRequiredPolicy(reader client.Reader, excludedNamespaces []string) (*requiredPolicy, error) {
	r := &requiredPolicy{
		reader: reader, policy: &admissionregistrationv1.ValidatingAdmissionPolicy{}, excluded: slices.Sorted(slices.Values(excludedNamespaces)),
		bindings: map[string]*admissionregistrationv1.ValidatingAdmissionPolicyBinding{},
	}
	if err := yaml.UnmarshalStrict(config.RequiredPolicy, r.policy); err != nil {
		return nil, err
	}
	for _, document := range bytes.Split(config.RequiredBindings, []byte("\n---\n")) {
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
		if err := yaml.UnmarshalStrict(document, binding); err != nil {
			return nil, err
		}
		r.bindings[binding.Spec.ParamRef.Selector.MatchLabels[appsv1beta1.LabelRequired]] = binding
	}
	return r, nil
}

// judge sets the condition Required of a SidecarSet with these labels, or removes it. If the API server
// cannot be asked, the condition stays as it is, and judge returns the error.
func (r *requiredPolicy) judge(ctx context.Context, labels map[string]string, s *appsv1beta1.SidecarSetStatus, now time.Time) error {
	value, isRequired := labels[appsv1beta1.LabelRequired]
	s.Conditions = slices.Clone(s.Conditions)
	if !isRequired {
		meta.RemoveStatusCondition(&s.Conditions, appsv1beta1.ConditionRequired)
		return nil
	}
	results, err := r.look(ctx, now)
	if err != nil {
		return err
	}
	c, known := results[value]
	if !known {
		c = modified("the label %s has the value %q: use true or warn", appsv1beta1.LabelRequired, value)
	}
	c.Type, c.ObservedGeneration = appsv1beta1.ConditionRequired, s.ObservedGeneration
	c.LastTransitionTime = metav1.NewTime(now.UTC().Truncate(time.Second))
	meta.SetStatusCondition(&s.Conditions, c)
	return nil
}

func (r *requiredPolicy) look(ctx context.Context, now time.Time) (map[string]metav1.Condition, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now.Sub(r.read) < requiredAge {
		return r.results, nil
	}
	r.read = time.Time{}
	results := map[string]metav1.Condition{}
	policy, err := r.judgePolicy(ctx)
	if err != nil {
		return nil, err
	}
	for value, want := range r.bindings {
		if results[value] = policy; policy.Status != metav1.ConditionTrue {
			continue
		}
		if results[value], err = r.judgeBinding(ctx, want); err != nil {
			return nil, err
		}
	}
	r.read, r.results = now, results
	return results, nil
}

const remedy = "apply config/required of this version, or set required.enabled of the chart"

func (r *requiredPolicy) judgePolicy(ctx context.Context) (metav1.Condition, error) {
	stored := &admissionregistrationv1.ValidatingAdmissionPolicy{}
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(r.policy), stored); err != nil {
		return missing("ValidatingAdmissionPolicy", r.policy.Name, err)
	}
	// Only the names of the excluded namespaces may differ from the manifest.
	if names := namesIn(stored); names != nil {
		if excluded := slices.Sorted(slices.Values(*names)); !slices.Equal(excluded, r.excluded) {
			return modified("ValidatingAdmissionPolicy %s leaves out the namespaces %s, and the operator injects no Pods in %s: correct its namespaceSelector, or --excluded-namespaces",
				stored.Name, strings.Join(excluded, ", "), strings.Join(r.excluded, ", ")), nil
		}
		*names = *namesIn(r.policy)
	}
	if !equality.Semantic.DeepEqual(stored.Spec, r.policy.Spec) {
		return modified("ValidatingAdmissionPolicy %s is not that of this version of the operator: %s", stored.Name, remedy), nil
	}
	return metav1.Condition{Status: metav1.ConditionTrue}, nil
}

// namesIn returns the excluded namespaces in a policy; nil if it has none in the manifest's place.
func namesIn(p *admissionregistrationv1.ValidatingAdmissionPolicy) *[]string {
	if c := p.Spec.MatchConstraints; c != nil && c.NamespaceSelector != nil && len(c.NamespaceSelector.MatchExpressions) == 1 {
		return &c.NamespaceSelector.MatchExpressions[0].Values
	}
	return nil
}

func (r *requiredPolicy) judgeBinding(ctx context.Context, want *admissionregistrationv1.ValidatingAdmissionPolicyBinding) (metav1.Condition, error) {
	stored := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{}
	if err := r.reader.Get(ctx, client.ObjectKeyFromObject(want), stored); err != nil {
		return missing("ValidatingAdmissionPolicyBinding", want.Name, err)
	}
	if !equality.Semantic.DeepEqual(stored.Spec, want.Spec) {
		return modified("ValidatingAdmissionPolicyBinding %s is not that of this version of the operator: %s", want.Name, remedy), nil
	}
	does := "refuse Pods that lack"
	if want.Spec.ValidationActions[0] == admissionregistrationv1.Warn {
		does = "warn of Pods that lack"
	}
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: appsv1beta1.ReasonPolicyBound, Message: "API servers " + does + " the sidecars."}, nil
}

// missing returns the condition for an object that could not be read, unless that is for another reason than
// that it does not exist.
func missing(kind, name string, err error) (metav1.Condition, error) {
	if !apierrors.IsNotFound(err) {
		return metav1.Condition{}, fmt.Errorf("reading %s %s: %w", kind, name, err)
	}
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: appsv1beta1.ReasonPolicyMissing,
		Message: fmt.Sprintf("API servers let Pods through that lack the sidecars, because there is no %s %s: %s.", kind, name, remedy),
	}, nil
}

func modified(format string, args ...any) metav1.Condition {
	return metav1.Condition{
		Status: metav1.ConditionFalse, Reason: appsv1beta1.ReasonPolicyModified,
		Message: "API servers may let Pods through that lack the sidecars, or refuse others: " + fmt.Sprintf(format, args...) + ".",
	}
}
