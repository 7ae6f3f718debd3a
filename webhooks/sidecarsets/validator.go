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
	"sigs.k8s.io/controller-runtime/pkg/log"

	appsv1alpha1 "github.com/sidecarset/operator/apis/apps/v1alpha1"
	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/hub"
	"github.com/sidecarset/operator/internal/match"
	"github.com/sidecarset/operator/internal/revision"
	"github.com/sidecarset/operator/internal/validation"
	"github.com/sidecarset/operator/webhooks/server"
	"github.com/sidecarset/operator/webhooks/snapshot"
)

// lookUpTimeout bounds a live read that several requests wait for, or that an answer
// can do without. Other reads end when the API server stops waiting.
const lookUpTimeout = 2 * time.Second

// ValidatorOptions is what the validating webhook needs.
type ValidatorOptions struct {
	// Stored returns a snapshot that holds every SidecarSet that was stored when it
	// was called. It may lack one for a moment whose author was warned that it is not in
	// force yet. An attempt that was not in time, and fails with
	// context.DeadlineExceeded, is made again while the API server waits.
	Stored func(context.Context) (*match.Snapshot, error)
	// Reader reads SidecarSets, ControllerRevisions and ConfigMaps from the API
	// server, not from a cache, where a SidecarSet gives cause.
	Reader client.Reader
	// ServerMinor returns the minor version of the API server. Warnings that need
	// it are left out where it fails or is nil.
	ServerMinor func(context.Context) (int, error)
	// Namespace holds the ControllerRevisions, and the ConfigMap that says which
	// annotations patchPodMetadata may set.
	Namespace string
	// PatchPodMetadataAllowed lets patchPodMetadata set any annotation where the
	// ConfigMap has no rule about a SidecarSet.
	PatchPodMetadataAllowed bool
	// ExcludedNamespaces are never injected; naming one gives a warning.
	ExcludedNamespaces []string
	// Widener is told of SidecarSets that are about to be stored. Optional.
	Widener Widener
	// Requester asks for the rights of a SidecarSet's author; nil asks for none.
	Requester *RequesterCheck
}

// NewValidator returns the webhook that says whether a SidecarSet of either version
// may be stored. A refusal has code 422, reason Invalid and one cause per problem. A
// look-up that fails is an error, never a verdict. It never changes the object.
func NewValidator(options ValidatorOptions) server.Handler {
	options.ExcludedNamespaces = slices.Clone(options.ExcludedNamespaces)
	v := &validator{options}
	return server.Review(func(ctx context.Context, req *admissionv1.AdmissionRequest) (server.Answer, error) {
		warnings, err := v.review(ctx, req)
		warnings = warnings[:min(len(warnings), maxProblems)] // API servers pass on 4 KiB of them
		return server.Answer{Warnings: warnings}, denial(err, warnings)
	})
}

// validator looks up what the rules need and asks them.
type validator struct{ ValidatorOptions }

// review reads the SidecarSet, judges it, asks for the rights of its author, and
// widens the webhook entries. It gives warnings, or the reason why the SidecarSet may
// not be stored.
func (v *validator) review(ctx context.Context, req *admissionv1.AdmissionRequest) ([]string, error) {
	w, err := read(ctx, req)
	if w == nil {
		return nil, err
	}
	old := w.replaced()
	warnings, err := v.validate(ctx, w.SidecarSet, old)
	if err == nil {
		var lacking []string
		lacking, err = v.Requester.Check(ctx, req.UserInfo, w.SidecarSet, old)
		warnings = append(warnings, lacking...)
	}
	if err == nil {
		warnings = append(warnings, v.widen(ctx, w.request, w.SidecarSet, old)...)
	}
	return append(warnings, warnAboutVersion(w.sent.Members)...), err
}

// denial is an error as the answer that it becomes: the Status of a verdict, or a
// failure to find one.
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

// warnAboutVersion says what v1alpha1 can express and its conversion drops.
func warnAboutVersion(object map[string]any) []string {
	spec, _ := object["spec"].(map[string]any)
	namespace, _ := spec["namespace"].(string)
	if object["apiVersion"] == appsv1alpha1.GroupVersion.String() && namespace != "" && spec["namespaceSelector"] != nil {
		return []string{"spec.namespaceSelector: is ignored beside spec.namespace; remove one of them"}
	}
	return nil
}

// validate says whether a SidecarSet may be created or, if old is not nil,
// replace it.
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
		return validation.Warnings(set.Set, env), refuse(set.Set, validation.Create(set.Set, env))
	}
	env.SameWithoutImages = sameWithoutImages(set.Object, old.Object)
	worse, kept, err := v.worsens(ctx, set, old, env)
	if err != nil {
		return nil, err
	}
	return append(kept, validation.Warnings(set.Set, env)...), refuse(set.Set, worse)
}

// worsens returns what an update makes worse, and warnings about what is just as wrong
// with the stored SidecarSet. That is checked only if there is something wrong at all.
func (v *validator) worsens(ctx context.Context, set, old *hub.SidecarSet, env validation.Environment) (worse field.ErrorList, warnings []string, err error) {
	errs := validation.Update(set.Set, old.Set, env)
	if len(errs) == 0 || !validation.MayKeep(set.Set, old.Set, old.Object) {
		return errs, nil, nil
	}
	before, err := v.gather(ctx, old.Set)
	if err != nil {
		return nil, nil, err
	}
	before.Object = old.Object
	worse, kept := validation.Keep(errs, set.Object, old.Set, before)
	for _, problem := range kept[:min(len(kept), maxProblems)] {
		warnings = append(warnings, problem.Error()+" (the stored SidecarSet has this problem already)")
	}
	return worse, warnings, nil
}

// sameWithoutImages reports whether two SidecarSets differ in nothing that the
// content hash covers but images. What cannot be hashed differs.
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

// gather looks up what the rules ask for about this SidecarSet.
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
	if v.ServerMinor != nil && validation.DependsOnVersion(set) {
		minor, err := v.ServerMinor(ctx)
		if err != nil { // a warning is not worth a refusal
			log.FromContext(ctx).V(1).Info("Left out the warnings about the API server's version", "error", err.Error())
			minor = 0
		}
		env.ServerMinor = minor
	}
	recorded, err := snapshot.RecordedRevisions{Reader: v.Reader, Namespace: v.Namespace}.Named(ctx, set)
	if err != nil {
		return env, lookUpError(revisionsOf(set.Name), err)
	}
	env.Recorded = recorded != nil
	others, err := v.others(ctx, set.Name)
	if err != nil {
		return env, err
	}
	env.Conflicts, err = v.conflicts(ctx, set, others)
	return env, err
}

// others are the SidecarSets that this one may clash with, also those that were
// stored a moment ago. One that cannot be decoded injects nothing, so it is left out. They
// are the snapshot's: many reviews at a time hold no copies.
func (v *validator) others(ctx context.Context, name string) ([]*appsv1beta1.SidecarSet, error) {
	catalog, err := v.Stored(ctx)
	for errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil { // the API server still waits
		catalog, err = v.Stored(ctx)
	}
	if err != nil {
		return nil, lookUpError("the other SidecarSets", err)
	}
	programs := catalog.Programs()
	others := make([]*appsv1beta1.SidecarSet, 0, len(programs))
	for _, program := range programs {
		if program.Name() != name {
			others = append(others, program.Set)
		}
	}
	return others, nil
}

// enoughToRefuse is how many of the SidecarSets that refuse another one are read
// live. More of them would not change the answer, only how many it names.
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
	others = slices.DeleteFunc(others, func(other *appsv1beta1.SidecarSet) bool { return gone.Has(other.Name) })
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

// get reads an object, which messages call by what, and reports whether it exists.
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

// revisionsOf is for lookUpError.
func revisionsOf(sidecarSet string) string {
	return "the ControllerRevisions of SidecarSet " + sidecarSet
}
