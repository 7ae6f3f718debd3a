package revision

import (
	"fmt"
	"maps"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
)

// Owner is the SidecarSet that a revision is recorded of.
type Owner struct {
	Name          string
	UID           types.UID
	Labels        map[string]string
	Annotations   map[string]string
	CustomVersion string
	// Hash and HashWithoutImage are the recorded revision's.
	Hash, HashWithoutImage string
	// Now is noted as the time since which a revision that was current before is the
	// current one again.
	Now time.Time
}

// New returns the ControllerRevision that records data, in namespace and with
// that number. It has the owner's labels and annotations, except the one
// that kubectl apply keeps for itself: it is as big as the SidecarSet, and
// kubectl does not read it from a revision. A custom version that is not a label
// value is left out, because the API server would refuse the revision.
func New(owner Owner, namespace string, data []byte, collisionCount int32, number int64) *appsv1.ControllerRevision {
	suffix := Suffix(data, collisionCount)
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:       namespace,
			Name:            Name(owner.Name, suffix),
			Labels:          make(map[string]string, len(owner.Labels)+3),
			Annotations:     make(map[string]string, len(owner.Annotations)+2),
			OwnerReferences: []metav1.OwnerReference{owner.reference()},
		},
		Data:     runtime.RawExtension{Raw: data},
		Revision: number,
	}
	maps.Copy(r.Labels, owner.Labels)
	r.Labels[labelHash] = suffix
	r.Labels[appsv1beta1.LabelSidecarSetName] = owner.Name
	maps.Copy(r.Annotations, owner.Annotations)
	delete(r.Annotations, corev1.LastAppliedConfigAnnotation)
	delete(r.Annotations, appsv1beta1.AnnotationCurrentSince)
	owner.mark(r)
	return r
}

// labelHash holds the suffix of the name that the revision was first given.
const labelHash = "controller.kubernetes.io/hash"

// mark sets the labels and annotations that may change while the revision stays the same.
func (o Owner) mark(r *appsv1.ControllerRevision) {
	metav1.SetMetaDataAnnotation(&r.ObjectMeta, appsv1beta1.AnnotationHash, o.Hash)
	metav1.SetMetaDataAnnotation(&r.ObjectMeta, appsv1beta1.AnnotationHashWithoutImage, o.HashWithoutImage)
	if o.CustomVersion != "" && len(validation.IsValidLabelValue(o.CustomVersion)) == 0 {
		metav1.SetMetaDataLabel(&r.ObjectMeta, appsv1beta1.LabelCustomVersion, o.CustomVersion)
	}
}

func (o Owner) reference() metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: appsv1beta1.GroupVersion.String(), Kind: appsv1beta1.Kind.Kind, Name: o.Name, UID: o.UID,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}
}

// mayUse reports whether a revision is the owner's, or has no owner. The
// revision of a deleted SidecarSet of the same name is about to be deleted too.
func (o Owner) mayUse(r *appsv1.ControllerRevision) bool {
	controller := metav1.GetControllerOf(r)
	return controller == nil || controller.UID == o.UID
}

// Refresh returns r as the owner's newest revision, with that number, and whether it differs.
// If the custom version is emptied, the label keeps the old one. Refresh changes a copy, not
// r.
func Refresh(r *appsv1.ControllerRevision, owner Owner, number int64) (*appsv1.ControllerRevision, bool) {
	next := r.DeepCopy()
	owner.mark(next)
	if next.Revision = number; number != r.Revision {
		next.Annotations[appsv1beta1.AnnotationCurrentSince] = owner.Now.UTC().Format(time.RFC3339)
	}
	orphan := metav1.GetControllerOf(r) == nil
	if orphan {
		next.OwnerReferences = append(next.OwnerReferences, owner.reference())
	}
	differs := orphan || next.Revision != r.Revision ||
		!maps.Equal(next.Labels, r.Labels) || !maps.Equal(next.Annotations, r.Annotations)
	return next, differs
}

// CurrentSince returns when the newest revision became that, to the second: when it
// was created, or when it became the current one again.
func CurrentSince(r *appsv1.ControllerRevision) time.Time {
	if again, err := time.Parse(time.RFC3339, r.Annotations[appsv1beta1.AnnotationCurrentSince]); err == nil && again.After(r.CreationTimestamp.Time) {
		return again
	}
	return r.CreationTimestamp.Time
}

// Restore returns the SidecarSet (v1beta1) as it was when the revision was recorded. Its spec
// has only the members that the revision records, so it has neither selector nor strategy. Its
// metadata are the current ones, except for the hashes. It shares unchanged parts with object.
// Restore does not change object.
func Restore(object map[string]any, r *appsv1.ControllerRevision) (map[string]any, error) {
	spec, err := Spec(r.Data.Raw)
	if err != nil {
		return nil, fmt.Errorf("reading ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
	}
	hash, withoutImage := r.Annotations[appsv1beta1.AnnotationHash], r.Annotations[appsv1beta1.AnnotationHashWithoutImage]
	if hash == "" || withoutImage == "" {
		if hash, withoutImage, err = Hashes(spec); err != nil {
			return nil, fmt.Errorf("hashing ControllerRevision %s/%s: %w", r.Namespace, r.Name, err)
		}
	}
	metadata, _ := object["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	metadata, annotations = cloneMap(metadata), cloneMap(annotations)
	annotations[appsv1beta1.AnnotationHash] = hash
	annotations[appsv1beta1.AnnotationHashWithoutImage] = withoutImage
	metadata["annotations"] = annotations

	restored := cloneMap(object)
	restored["metadata"], restored["spec"] = metadata, spec
	restored["status"] = map[string]any{"latestRevision": r.Name}
	return restored, nil
}

func cloneMap(m map[string]any) map[string]any {
	if m == nil {
		return make(map[string]any)
	}
	return maps.Clone(m)
}
