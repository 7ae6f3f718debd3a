package webhooks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrladmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/validation"
)

// lookUpTimeout bounds each live read that a rule needs; together they stay
// within the time that the API server waits for us.
const lookUpTimeout = 2 * time.Second

// SidecarSetValidatorOptions is what the validating webhook needs.
type SidecarSetValidatorOptions struct {
	// Reader reads SidecarSets (metadata only) and ConfigMaps from the API
	// server, not from a cache, and only where a SidecarSet gives cause.
	Reader client.Reader
	// Namespace holds the ConfigMap that says which annotations patchPodMetadata
	// may set.
	Namespace string
	// PermissiveWhitelist allows all of them where no rule is about a SidecarSet.
	PermissiveWhitelist bool
	// ExcludedNamespaces are never injected; naming one gives a warning.
	ExcludedNamespaces []string
}

// NewSidecarSetValidator returns the webhook that says whether a SidecarSet of
// either version may be stored. A refusal has code 422, reason Invalid and one
// cause per problem; a look-up that fails is an error, never a verdict.
func NewSidecarSetValidator(options SidecarSetValidatorOptions) *ctrladmission.Webhook {
	options.ExcludedNamespaces = slices.Clone(options.ExcludedNamespaces)
	return &ctrladmission.Webhook{Handler: &sidecarSetReview{validator: &sidecarSetValidator{options}}}
}

// sidecarSetReview adapts requests of both versions to the validator, which
// knows the hub only. The framework's own adapter cannot: it decodes v1alpha1
// into the hub's type without converting it.
type sidecarSetReview struct {
	validator ctrladmission.Validator[*appsv1beta1.SidecarSet]
}

// Handle answers one request. It never changes the object.
func (r *sidecarSetReview) Handle(ctx context.Context, req ctrladmission.Request) ctrladmission.Response {
	if !writesSidecarSet(req) {
		return ctrladmission.Allowed("")
	}
	object, err := readSidecarSet(req.Object.Raw)
	if err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, err)
	}
	if onlyFinalizes(object, req) {
		return ctrladmission.Allowed("")
	}
	set, err := typedSidecarSet(object)
	if err != nil {
		return ctrladmission.Errored(http.StatusBadRequest, err)
	}
	warnings, err := r.validate(ctx, set, req)
	return verdict(warnings, err)
}

func (r *sidecarSetReview) validate(ctx context.Context, set *appsv1beta1.SidecarSet, req ctrladmission.Request) (ctrladmission.Warnings, error) {
	if req.Operation == admissionv1.Update {
		if old := storedSidecarSet(req); old != nil {
			return r.validator.ValidateUpdate(ctx, old, set)
		}
	}
	return r.validator.ValidateCreate(ctx, set)
}

// storedSidecarSet is the object that an update replaces. One that cannot be
// read was stored while no webhook checked it; an update that repairs it is
// held to the rules for new objects, hence nil.
func storedSidecarSet(req ctrladmission.Request) *appsv1beta1.SidecarSet {
	object, err := readSidecarSet(req.OldObject.Raw)
	if err != nil {
		return nil
	}
	set, err := typedSidecarSet(object)
	if err != nil {
		return nil
	}
	return set
}

func verdict(warnings ctrladmission.Warnings, err error) ctrladmission.Response {
	if err == nil {
		return ctrladmission.Allowed("").WithWarnings(warnings...)
	}
	var refusal apierrors.APIStatus
	if !errors.As(err, &refusal) {
		return ctrladmission.Errored(http.StatusInternalServerError, err).WithWarnings(warnings...)
	}
	response := ctrladmission.Denied("").WithWarnings(warnings...)
	response.Result = new(refusal.Status())
	return response
}

// sidecarSetValidator gathers what the rules need and asks them.
type sidecarSetValidator struct{ SidecarSetValidatorOptions }

var _ ctrladmission.Validator[*appsv1beta1.SidecarSet] = (*sidecarSetValidator)(nil)

// ValidateCreate says whether set may be created.
func (v *sidecarSetValidator) ValidateCreate(ctx context.Context, set *appsv1beta1.SidecarSet) (ctrladmission.Warnings, error) {
	env, err := v.gather(ctx, set)
	if err != nil {
		return nil, err
	}
	return validation.Warnings(set, env), refuse(set, validation.Create(set, env))
}

// ValidateUpdate says whether set may replace old.
func (v *sidecarSetValidator) ValidateUpdate(ctx context.Context, old, set *appsv1beta1.SidecarSet) (ctrladmission.Warnings, error) {
	env, err := v.gather(ctx, set)
	if err != nil {
		return nil, err
	}
	return validation.Warnings(set, env), refuse(set, validation.Update(set, old, env))
}

// ValidateDelete allows every deletion.
func (v *sidecarSetValidator) ValidateDelete(context.Context, *appsv1beta1.SidecarSet) (ctrladmission.Warnings, error) {
	return nil, nil
}

func refuse(set *appsv1beta1.SidecarSet, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	return apierrors.NewInvalid(appsv1beta1.Kind.GroupKind(), set.Name, errs)
}

// gather looks up what the rules ask for about this SidecarSet.
func (v *sidecarSetValidator) gather(ctx context.Context, set *appsv1beta1.SidecarSet) (validation.Environment, error) {
	env := validation.Environment{
		ExcludedNamespaces: v.ExcludedNamespaces,
		Whitelist:          validation.Whitelist{Namespace: v.Namespace, Permissive: v.PermissiveWhitelist},
	}
	var err error
	if name := validation.BaseOf(&set.ObjectMeta); name != "" && name != set.Name {
		if env.Base, err = v.base(ctx, name); err != nil {
			return env, err
		}
	}
	if len(set.Spec.PatchPodMetadata) > 0 {
		env.Whitelist.Content, err = v.whitelist(ctx)
	}
	return env, err
}

// base reads the metadata of the SidecarSet that a canary names; nil if there
// is none. It is read live: the base may have been created a moment ago.
func (v *sidecarSetValidator) base(ctx context.Context, name string) (*metav1.ObjectMeta, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	base := &metav1.PartialObjectMetadata{}
	base.SetGroupVersionKind(appsv1beta1.Kind)
	err := v.Reader.Get(ctx, types.NamespacedName{Name: name}, base)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, &lookUpError{"SidecarSet " + name, err}
	}
	return &base.ObjectMeta, nil
}

// whitelist reads the administrator's rules; "" if there are none.
func (v *sidecarSetValidator) whitelist(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, lookUpTimeout)
	defer cancel()
	var config corev1.ConfigMap
	err := v.Reader.Get(ctx, types.NamespacedName{Namespace: v.Namespace, Name: validation.WhitelistConfigMap}, &config)
	switch {
	case apierrors.IsNotFound(err):
		return "", nil
	case err != nil:
		return "", &lookUpError{"ConfigMap " + v.Namespace + "/" + validation.WhitelistConfigMap, err}
	}
	return config.Data[validation.WhitelistKey], nil
}

// lookUpError says that a rule could not be applied. It hides the status of its
// cause, which is about another object than the one under review.
type lookUpError struct {
	object string
	cause  error
}

func (e *lookUpError) Error() string {
	return fmt.Sprintf("looking up %s, try again: %v", e.object, e.cause)
}
