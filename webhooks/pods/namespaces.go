package pods

// The labels of a Namespace are read live if those of the snapshot may be old.
// +kubebuilder:rbac:roleName=sidecarset-webhook,groups="",resources=namespaces,verbs=get

import (
	"context"
	"errors"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/webhooks/snapshot"
)

const (
	// namespaceTimeout bounds one live read of a Namespace, so that the next read may
	// succeed instead. A Pod waits until its own deadline.
	namespaceTimeout = 2 * time.Second
	// namespaceReads is how many Namespaces that the snapshot knows are read at the same
	// time. A read takes 1 to 2 ms, so there are more reads at a time only if the API server
	// is slow. unknownReads is how many Namespaces that the snapshot does not know are read
	// at the same time.
	namespaceReads = 192
	unknownReads   = 64

	// An unauthenticated client may send reviews, and make up their Namespaces. So the reviews in Namespaces
	// that the snapshot does not know have a rate per second; four times as many may come together.
	// A Namespace that exists is in the snapshot some milliseconds after it was created.
	unknownRate = 200
)

// errTooManyUnknown refuses a Pod whose Namespace would be read above this rate.
var errTooManyUnknown = errors.New("too many Pods come in Namespaces that this replica does not know")

// liveNamespaces reads labels of Namespaces. It is safe for concurrent use.
type liveNamespaces struct {
	known, unknown *snapshot.Shared[string, labels.Set]

	rate *rate.Limiter // of those that are not known
}

func newLiveNamespaces(reader client.Reader) *liveNamespaces {
	read := func(ctx context.Context, name string) (labels.Set, error) {
		ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
		defer cancel()
		namespace := snapshot.Metadata(corev1.SchemeGroupVersion.WithKind("Namespace"))
		if err := reader.Get(ctx, client.ObjectKey{Name: name}, namespace); err != nil {
			return nil, err // match adds the name of the Namespace
		}
		return namespace.Labels, nil
	}
	return &liveNamespaces{
		known: snapshot.NewShared(namespaceReads, read), unknown: snapshot.NewShared(unknownReads, read),
		rate: rate.NewLimiter(unknownRate, 4*unknownRate),
	}
}

// labels returns the labels of a Namespace as they are stored at some moment after the
// call. It remembers no labels: the API server calls us for a Pod because of labels that it
// knows, and those may be newer than any earlier read. If a read fails, it is unknown
// which SidecarSets select the Pod.
func (n *liveNamespaces) labels(ctx context.Context, name string, known bool) (labels.Set, error) {
	if known {
		return n.known.Get(ctx, name)
	}
	if !n.rate.Allow() {
		return nil, errTooManyUnknown
	}
	return n.unknown.Get(ctx, name)
}
