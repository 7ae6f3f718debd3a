// Package propagation knows how a change gets from one process to all that have
// to know of it before a user may rely on it: what each replica that answers
// webhooks publishes about itself, when all of them have reached a version, and
// by what trace one can tell which webhook configuration an API server uses.
//
// It holds formats and decisions, both for webhooks (which publish and answer)
// and controllers (which read and ask). It refuses to know clients and clocks.
package propagation

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Paths of the webhook server that entries for Pods name.
const (
	// PathPods answers from the snapshot that the replica has.
	PathPods = "/pods"
	// PathPodsFresh first makes sure that the snapshot holds every SidecarSet
	// that was stored when the request came.
	PathPodsFresh = "/pods/fresh"
	// PathBarrier, followed by a configuration's name and a serial, tells which
	// configuration an API server uses; see BarrierPath.
	PathBarrier = "/barrier/"
)

// What a barrier probe is: a ConfigMap, created under dry-run in the operator's
// namespace, that carries LabelBarrier with the name of a configuration object.
// That object's barrier entry selects it, and the webhook answers with the
// serial in the entry's path, as AnnotationBarrier. So the answer tells which
// version of the configuration the API server had in force.
const (
	LabelBarrier      = "sidecarset.io/barrier"
	AnnotationBarrier = "sidecarset.io/barrier-serial"
)

// StaticBarrier is the name in the path of the barrier entry that an administrator
// keeps with --pod-webhook=static. Its serial never changes: it tells that calls are
// answered, and nothing else.
const StaticBarrier = "static"

// BarrierPath is the path of the barrier entry of a configuration object.
func BarrierPath(configuration string, serial int64) string {
	return PathBarrier + configuration + "/" + strconv.FormatInt(serial, 10)
}

// ParseBarrierPath is the inverse of BarrierPath; false for any other path.
func ParseBarrierPath(path string) (configuration string, serial int64, ok bool) {
	rest, ok := strings.CutPrefix(path, PathBarrier)
	if !ok {
		return "", 0, false
	}
	configuration, number, ok := strings.Cut(rest, "/")
	if !ok || configuration == "" {
		return "", 0, false
	}
	serial, err := strconv.ParseInt(number, 10, 64)
	if err != nil || serial < 0 || strconv.FormatInt(serial, 10) != number {
		return "", 0, false
	}
	return configuration, serial, true
}

// Times of a replica's Lease. A replica that could not renew for ReplicaDoubt
// answers every Pod as on PathPodsFresh, so that it is safe for others not to
// wait for it once they have seen no renewal for ReplicaGone, which is longer
// by more than a request takes.
const (
	// RenewInterval is how often a replica renews when nothing has changed.
	RenewInterval = 5 * time.Second
	// MinPublishInterval is the least time between two writes of one replica.
	MinPublishInterval = time.Second
	ReplicaDoubt       = 20 * time.Second
	ReplicaGone        = 35 * time.Second
)

const (
	// LabelReplica marks the Leases by which replicas publish.
	LabelReplica = "sidecarset.io/webhook-replica"
	// annotationObserved holds the resourceVersion up to which a replica's
	// snapshot holds all SidecarSets.
	annotationObserved = "sidecarset.io/observed-resource-version"
)

// ReplicaLeases selects the Leases by which replicas publish.
func ReplicaLeases() labels.Selector {
	return labels.SelectorFromSet(labels.Set{LabelReplica: "true"})
}

// Replica is what one replica publishes.
type Replica struct {
	// Name is unique among the processes that run or ran lately.
	Name string
	// Observed is a resourceVersion of SidecarSets: the snapshot that decides
	// about Pods holds every change up to it. 0 while there is no snapshot.
	Observed uint64
	// Renewed is when the replica says that it wrote this, by its own clock.
	// Compare it with values of the same replica only.
	Renewed time.Time
	// Gone is after what time without a renewal it is not waited for.
	Gone time.Duration
}

// leaseFormat is the newest format of Leases that this version of the operator can
// read.
const leaseFormat = 1

// AnnotationFormat holds the number of the format that an object of ours has. One
// without it has the first.
const AnnotationFormat = "sidecarset.io/format"

// Readable says whether annotations are of an object in a format that is not newer
// than the given one.
func Readable(annotations map[string]string, newest int) bool {
	value, ok := annotations[AnnotationFormat]
	if !ok {
		return true
	}
	number, err := strconv.Atoi(value)
	return err == nil && number <= newest
}

// maxGone bounds for how long a replica can have others wait for it.
const maxGone = 5 * time.Minute

// LeaseName is the name of a replica's Lease.
func LeaseName(replica string) string { return "sidecarset-webhook-" + replica }

// Lease is how a replica publishes, in the operator's namespace.
func (r Replica) Lease(namespace string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        LeaseName(r.Name),
			Labels:      map[string]string{LabelReplica: "true"},
			Annotations: map[string]string{annotationObserved: strconv.FormatUint(r.Observed, 10), AnnotationFormat: strconv.Itoa(leaseFormat)},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       new(r.Name),
			RenewTime:            new(metav1.NewMicroTime(r.Renewed)),
			LeaseDurationSeconds: new(int32(r.gone() / time.Second)),
		},
	}
}

func (r Replica) gone() time.Duration {
	if r.Gone <= 0 {
		return ReplicaGone
	}
	return min(r.Gone, maxGone)
}

// ParseLease reads what a replica published. With an error it returns what is safe
// to believe: that there is a replica, which knows nothing. Another version of the
// operator may have written it.
func ParseLease(lease *coordinationv1.Lease) (Replica, error) {
	r := Replica{Name: strings.TrimPrefix(lease.Name, LeaseName(""))}
	if seconds := lease.Spec.LeaseDurationSeconds; seconds != nil {
		r.Gone = time.Duration(*seconds) * time.Second
	}
	r.Gone = r.gone()
	if !Readable(lease.Annotations, leaseFormat) {
		return r, fmt.Errorf("reading Lease %s/%s: its format %q is of a newer version of the operator", lease.Namespace, lease.Name, lease.Annotations[AnnotationFormat])
	}
	if lease.Spec.HolderIdentity == nil || lease.Spec.RenewTime == nil {
		return r, fmt.Errorf("reading Lease %s/%s: it has no holderIdentity or no renewTime", lease.Namespace, lease.Name)
	}
	if name := *lease.Spec.HolderIdentity; name == "" || lease.Name != LeaseName(name) {
		return r, fmt.Errorf("reading Lease %s/%s: it is not named after its holder %q", lease.Namespace, lease.Name, name)
	}
	observed, err := ParseVersion(lease.Annotations[annotationObserved])
	if err != nil {
		return r, fmt.Errorf("reading Lease %s/%s: annotation %s: %w", lease.Namespace, lease.Name, annotationObserved, err)
	}
	r.Observed, r.Renewed = observed, lease.Spec.RenewTime.Time
	return r, nil
}

// ParseVersion reads a resourceVersion as the number that Kubernetes says it
// is, so that two of the same kind can be compared.
func ParseVersion(resourceVersion string) (uint64, error) {
	version, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("resourceVersion %q is not a number", resourceVersion)
	}
	return version, nil
}
