package sidecarsets

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
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/validation"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// lookUpTimeout bounds a live read if several requests share it, or if the webhook can
// answer without it. Other reads end when the API server stops waiting.
const lookUpTimeout = 2 * time.Second

// ValidatorOptions is what the validating webhook needs.
type ValidatorOptions struct {
	// Stored returns the newest snapshot of what is stored. A SidecarSet that was stored a moment
	// ago may be missing: if two in conflict are stored at the same time, the condition Ready of
	// the later one says so.
	Stored func(context.Context) (*match.Snapshot, error)
	// Current returns the newest snapshot; nil before there is one. If it is nil itself,
	// warnings about Namespaces are left out.
	Current func() *match.Snapshot
	// Reader reads SidecarSets, ControllerRevisions and ConfigMaps from the API server,
	// not from a cache, if a rule about the SidecarSet needs them.
	Reader client.Reader
	// Content asks the API server about containers, volumes and pull secrets. If it is nil,
	// nothing that Kubernetes says of them is known.
	Template *TemplateCheck
	// Namespace holds the ControllerRevisions, and the ConfigMap that says which
	// annotations patchPodMetadata may set.
	Namespace string
	// PatchPodMetadataAllowed lets patchPodMetadata set any annotation if the ConfigMap
	// has no rule about the SidecarSet.
	PatchPodMetadataAllowed bool
	// ExcludedNamespaces are never injected; naming one gives a warning.
	ExcludedNamespaces []string
	// Registrar, if not nil, is called for each SidecarSet that is about to be stored.
	Registrar Registrar
	// Requester asks whether the requester of a SidecarSet has the rights that it takes. If
	// it is nil, no rights are needed.
	Requester *RequesterCheck
}

// NewValidator returns the webhook that decides whether a SidecarSet of either version may
// be stored. A refusal by a rule has code 422, reason Invalid and one cause per problem. If a
// look-up fails, the webhook does not decide, and answers with an error. It never changes
// the object.
func NewValidator(options ValidatorOptions) server.Handler {
	options.ExcludedNamespaces = slices.Clone(options.ExcludedNamespaces)
	v := &validator{options}
	return server.Review(func(ctx context.Context, req *admissionv1.AdmissionRequest) (server.Answer, error) {
		warnings, err := v.review(ctx, req)
		warnings = warnings[:min(len(warnings), maxProblems)] // API servers pass on 4 KiB of them
		return server.Answer{Warnings: warnings}, denial(err, warnings)
	})
}

// validator looks up the objects that the rules need, and applies the rules.
type validator struct{ ValidatorOptions }

// review reads the SidecarSet, judges it, asks for the rights of its requester, and
// registers the Pod webhooks. It gives warnings, or the reason why the SidecarSet may
// not be stored.
func (v *validator) review(ctx context.Context, req *admissionv1.AdmissionRequest) ([]string, error) {
	w, err := read(ctx, req)
	if w == nil {
		return nil, err
	}
	old := w.replaced()
	warnings, err := v.validate(ctx, w.SidecarSet, old)
	if err == nil {
		var missing []string
		missing, err = v.Requester.Check(ctx, req.UserInfo, w.SidecarSet, old)
		warnings = append(warnings, missing...)
	}
	if err == nil {
		warnings = append(warnings, v.register(ctx, w.request, w.SidecarSet, old)...)
		warnings = append(warnings, v.podSecurity(w.SidecarSet)...)
	}
	return warnings, err
}

// denial returns an error of review as a Refusal with these warnings. An error with a Status
// keeps it. Any other error is a failure to decide, with code 500.
func denial(err error, warnings []string) error {
	var refusal *server.Refusal
	var status apierrors.APIStatus
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refusal):
	case errors.As(err, &status):
		s := status.Status()
		refusal = &server.Refusal{Code: int(s.Code), Message: s.Message, Details: s.Details}
	default:
		refusal = &server.Refusal{Code: http.StatusInternalServerError, Message: err.Error()}
	}
	refusal.Warnings = warnings
	return refusal
}

// validate decides whether a SidecarSet may be created or, if old is not nil, may replace
// old.
func (v *validator) validate(ctx context.Context, set, old *hub.SidecarSet) ([]string, error) {
	var stored *appsv1beta1.SidecarSet
	var replaced map[string]any
	if old != nil {
		stored, replaced = old.Set, old.Object
	}
	if err := refuse(set.Set, validation.Bounds(set.Set, stored, set.Object, replaced)); err != nil {
		return nil, err
	}
	env, err := v.gather(ctx, set.Set)
	if err != nil {
		return nil, err
	}
	env.Object, env.Replaced = set.Object, replaced
	if old == nil {
		errs := validation.Create(set.Set, env)
		template := v.Template.check(ctx, set, nil, len(errs) > 0, false).now
		return append(validation.Warnings(set.Set, env), template.Warnings...), refuse(set.Set, append(errs, template.Refused...))
	}
	env.SameWithoutImages = sameWithoutImages(set.Object, old.Object)
	return v.update(ctx, set, old, env)
}

// update decides whether set may replace old. Problems that the stored SidecarSet has already
// are warnings. It looks for them only if the updated one has problems.
func (v *validator) update(ctx context.Context, set, old *hub.SidecarSet, env validation.Environment) (warnings []string, err error) {
	errs, mayKeep := validation.Update(set.Set, old.Set, env), validation.MayKeep(set.Set, old.Set, old.Object)
	template := v.Template.check(ctx, set, old, len(errs) > 0, mayKeep)
	if errs = append(errs, template.now.Refused...); len(errs) > 0 && mayKeep {
		before, err := v.gather(ctx, old.Set)
		if err != nil {
			return nil, err
		}
		before.Object = old.Object
		worse, kept := validation.Keep(errs, set.Object, old.Set, before, template.before.Refused)
		errs = worse
		for _, problem := range kept[:min(len(kept), maxProblems)] {
			warnings = append(warnings, problem.Error()+" (the stored SidecarSet has this problem already)")
		}
	}
	return slices.Concat(warnings, validation.Warnings(set.Set, env), template.now.Warnings), refuse(set.Set, errs)
}

// sameWithoutImages reports whether the hashes without images of two SidecarSets are
// equal. If one cannot be hashed, they differ.
func sameWithoutImages(a, b map[string]any) bool {
	hash := func(object map[string]any) string {
		spec, _ := object["spec"].(map[string]any)
		_, withoutImages, err := revision.Hashes(spec)
		if err != nil {
			return ""
		}
		return withoutImages
	}
	first := hash(a)
	return first != "" && first == hash(b)
}

// maxProblems is how many problems, and how many warnings, an answer names. The time
// that the libraries take to join them grows with the square of their number.
const maxProblems = 100

func refuse(set *appsv1beta1.SidecarSet, errs field.ErrorList) error {
	if len(errs) == 0 {
		return nil
	}
	if more := len(errs) - maxProblems; more > 0 {
		errs = append(errs[:maxProblems:maxProblems], field.Forbidden(field.NewPath("spec"), fmt.Sprintf("has %d more problems; correct these first", more)))
	}
	return apierrors.NewInvalid(appsv1beta1.Kind.GroupKind(), set.Name, errs)
}

// gather looks up the objects that the rules need for this SidecarSet.
func (v *validator) gather(ctx context.Context, set *appsv1beta1.SidecarSet) (validation.Environment, error) {
	env := validation.Environment{
		ExcludedNamespaces: v.ExcludedNamespaces,
		Whitelist:          validation.Whitelist{Namespace: v.Namespace, AllowedByDefault: v.PatchPodMetadataAllowed},
	}
	var err error
	if name := appsv1beta1.BaseOfCanary(set.Annotations); name != "" && name != set.Name {
		if env.Base, err = v.metadata(ctx, name); err != nil {
			return env, err
		}
	}
	if len(set.Spec.PatchPodMetadata) > 0 {
		if env.Whitelist.Content, err = v.whitelist(ctx); err != nil {
			return env, err
		}
	}
	recorded, err := snapshot.RecordedRevisions{Reader: v.Reader, Namespace: v.Namespace}.Named(ctx, set)
	if err != nil {
		return env, lookUpError(revisionsOf(set.Name), err)
	}
	env.Recorded = recorded != nil
	others, err := v.others(ctx)
	if err != nil {
		return env, err
	}
	env.Stored = others
	env.Conflicts, err = v.conflicts(ctx, set, others)
	return env, err
}

// others returns the SidecarSets that the one under review may conflict with. If the one under review is stored, it is among them. A SidecarSet
// that cannot be decoded injects nothing, so it is left out. The result shares the objects of
// the snapshot, so that many reviews at a time need no copies.
func (v *validator) others(ctx context.Context) ([]*appsv1beta1.SidecarSet, error) {
	store, err := v.Stored(ctx)
	if err != nil {
		return nil, lookUpError("the other SidecarSets", err)
	}
	sidecarSets := store.SidecarSets()
	others := make([]*appsv1beta1.SidecarSet, 0, len(sidecarSets))
	for _, compiled := range sidecarSets {
		others = append(others, compiled.Set)
	}
	return others, nil
}

// enoughToRefuse is how many of the SidecarSets in conflict with this one are found live
// before the search ends. More would not change the decision.
const enoughToRefuse = 10

// conflicts finds the conflicts with others. It leaves out SidecarSets that would refuse
// this one but are not stored any more: the snapshot learns of a deletion a moment later.
func (v *validator) conflicts(ctx context.Context, set *appsv1beta1.SidecarSet, others []*appsv1beta1.SidecarSet) (validation.Conflicts, error) {
	found := validation.FindConflicts(set, others)
	stored, gone := 0, sets.New[string]()
	for _, name := range found.Refusing() {
		switch metadata, err := v.metadata(ctx, name); {
		case err != nil:
			return found, err
		case metadata == nil:
			gone.Insert(name)
		default:
			stored++
		}
		if stored == enoughToRefuse {
			break
		}
	}
	if len(gone) == 0 {
		return found, nil
	}
	others = slices.DeleteFunc(slices.Clone(others), func(other *appsv1beta1.SidecarSet) bool { return gone.Has(other.Name) })
	return validation.FindConflicts(set, others), nil
}

// metadata reads the metadata of a SidecarSet; nil if there is none. It is read
// live: the SidecarSet may have been created or deleted a moment ago.
func (v *validator) metadata(ctx context.Context, name string) (*metav1.ObjectMeta, error) {
	found := snapshot.Metadata(appsv1beta1.Kind)
	if exists, err := v.get(ctx, types.NamespacedName{Name: name}, found, "SidecarSet "+name); !exists {
		return nil, err
	}
	return &found.ObjectMeta, nil
}

// whitelist reads the administrator's rules; "" if there are none.
func (v *validator) whitelist(ctx context.Context) (string, error) {
	var config corev1.ConfigMap
	key := types.NamespacedName{Namespace: v.Namespace, Name: validation.WhitelistConfigMap}
	_, err := v.get(ctx, key, &config, "ConfigMap "+key.String())
	return config.Data[validation.WhitelistKey], err
}

// get reads an object and reports whether it exists. what names the object in messages.
func (v *validator) get(ctx context.Context, key types.NamespacedName, object client.Object, what string) (bool, error) {
	err := v.Reader.Get(ctx, key, object)
	if err != nil && !apierrors.IsNotFound(err) {
		return false, lookUpError(what, err)
	}
	return err == nil, nil
}

// lookUpError says that a rule could not be applied. It hides the status of its
// cause, which is about another object than the one under review.
func lookUpError(object string, cause error) error {
	return &server.Refusal{Code: http.StatusInternalServerError, Message: fmt.Sprintf("looking up %s, try again: %v", object, cause)}
}

// revisionsOf names the revisions of a SidecarSet, for lookUpError.
func revisionsOf(sidecarSet string) string {
	return "the ControllerRevisions of SidecarSet " + sidecarSet
}
