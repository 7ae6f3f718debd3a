package pods

// The labels of a Namespace are read live if those of the snapshot may be old.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=namespaces,verbs=get

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/webhooks/snapshot"
)

const (
	// namespaceTimeout bounds one live read of a Namespace, so that another may
	// succeed in its stead. A Pod waits until its own deadline.
	namespaceTimeout = 2 * time.Second
	// namespaceReads is how many Namespaces are read at the same time. A read takes
	// 1 to 2 ms, so more are read together only if the API server is slow.
	namespaceReads = 256
)

// liveNamespaces reads labels of Namespaces as they are stored at some moment after
// the call. It remembers none: the API server calls us for a Pod because of labels
// that it knows, and those may be newer than any earlier read. If a read fails, it is
// unknown which SidecarSets select the Pod.
func liveNamespaces(reader client.Reader) *snapshot.Shared[string, labels.Set] {
	return snapshot.NewShared(namespaceReads, func(ctx context.Context, name string) (labels.Set, error) {
		ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
		defer cancel()
		namespace := &metav1.PartialObjectMetadata{}
		namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
			return nil, err // match says of which Namespace
		}
		return namespace.Labels, nil
	})
}
