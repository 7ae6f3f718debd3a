package propagation_test

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sidecarset/operator/internal/propagation"
)

func TestBarrierPathsAreReadBack(t *testing.T) {
	for _, configuration := range []string{"sidecarset-pods-0", "sidecarset-pods-15", "x"} {
		for _, serial := range []int64{0, 1, 1700000000000, math.MaxInt64} {
			path := propagation.BarrierPath(configuration, serial)
			if name, got, ok := propagation.ParseBarrierPath(path); !ok || name != configuration || got != serial {
				t.Errorf("%s is read as %q, %d, %v", path, name, got, ok)
			}
		}
	}
}

func TestOtherPathsAreNoBarriers(t *testing.T) {
	tests := map[string]string{
		"nothing":                  "",
		"the path of Pods":         propagation.PathPods,
		"the prefix alone":         "/barrier/",
		"no slash in front":        "barrier/a/1",
		"no serial":                "/barrier/a",
		"an empty serial":          "/barrier/a/",
		"no configuration":         "/barrier//1",
		"a negative serial":        "/barrier/a/-1",
		"a sign":                   "/barrier/a/+1",
		"a zero in front":          "/barrier/a/01",
		"no number":                "/barrier/a/one",
		"something after it":       "/barrier/a/1/",
		"a part in between":        "/barrier/a/b/1",
		"more than a number holds": "/barrier/a/9223372036854775808",
	}
	for name, path := range tests {
		t.Run(name, func(t *testing.T) {
			if configuration, serial, ok := propagation.ParseBarrierPath(path); ok || configuration != "" || serial != 0 {
				t.Errorf("%q is read as %q, %d, %v", path, configuration, serial, ok)
			}
		})
	}
}

func replica() propagation.Replica {
	return propagation.Replica{Name: "operator-abc-x1y2z", Gone: propagation.ReplicaGone, Observed: math.MaxUint64, Renewed: time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)}
}

func TestLeasesAreReadBack(t *testing.T) {
	for _, want := range []propagation.Replica{replica(), {Name: "a", Gone: time.Minute, Renewed: time.Unix(0, 0)}} {
		lease := want.Lease("ours")
		if lease.Namespace != "ours" || lease.Name != propagation.LeaseName(want.Name) || !propagation.ReplicaLeases().Matches(labels.Set(lease.Labels)) {
			t.Errorf("the Lease is %s/%s with labels %v", lease.Namespace, lease.Name, lease.Labels)
		}
		if got := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second; got != want.Gone {
			t.Errorf("it lasts %v, others wait for %v", got, want.Gone)
		}
		got, err := propagation.ParseLease(lease)
		if err != nil {
			t.Fatalf("ParseLease: %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("replica (-want +got):\n%s", diff)
		}
	}
}

// Another version of the operator may have written it. Then its replica may know
// nothing of what others rely on, and has to be waited for.
func TestALeaseThatCannotBeReadIsOfAReplicaThatKnowsNothing(t *testing.T) {
	annotation := "sidecarset.io/observed-resource-version"
	tests := map[string]func(*coordinationv1.Lease){
		"no holder":                   func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = nil },
		"a holder without a name":     func(l *coordinationv1.Lease) { l.Spec.HolderIdentity, l.Name = new(""), propagation.LeaseName("") },
		"a copy under another name":   func(l *coordinationv1.Lease) { l.Name += "-copy" },
		"no time":                     func(l *coordinationv1.Lease) { l.Spec.RenewTime = nil },
		"no version":                  func(l *coordinationv1.Lease) { l.Annotations = nil },
		"a version that is no number": func(l *coordinationv1.Lease) { l.Annotations[annotation] = "newest" },
		"a negative version":          func(l *coordinationv1.Lease) { l.Annotations[annotation] = "-1" },
		"a newer format":              func(l *coordinationv1.Lease) { l.Annotations[propagation.AnnotationFormat] = "2" },
		"a format that is no number":  func(l *coordinationv1.Lease) { l.Annotations[propagation.AnnotationFormat] = "" },
	}
	for name, edit := range tests {
		t.Run(name, func(t *testing.T) {
			lease := replica().Lease("ours")
			edit(lease)
			lease.Spec.LeaseDurationSeconds = new(int32(90))
			want := propagation.Replica{Name: strings.TrimPrefix(lease.Name, propagation.LeaseName("")), Gone: 90 * time.Second}
			if got, err := propagation.ParseLease(lease); err == nil || got != want {
				t.Errorf("ParseLease = %v, %v", got, err)
			}
		})
	}
}

// The reader's own idea of it may be an older one.
func TestALeaseSaysForHowLongItIsWaitedFor(t *testing.T) {
	for seconds, want := range map[int32]time.Duration{0: propagation.ReplicaGone, -5: propagation.ReplicaGone, 50: 50 * time.Second, math.MaxInt32: 5 * time.Minute} {
		lease := replica().Lease("ours")
		lease.Spec.LeaseDurationSeconds = &seconds
		if got, err := propagation.ParseLease(lease); err != nil || got.Gone != want {
			t.Errorf("%d s: %v, %v", seconds, got.Gone, err)
		}
	}
	lease := replica().Lease("ours")
	lease.Spec.LeaseDurationSeconds = nil
	delete(lease.Annotations, propagation.AnnotationFormat) // as the first version wrote it
	if got, err := propagation.ParseLease(lease); err != nil || got != replica() {
		t.Errorf("ParseLease = %v, %v", got, err)
	}
}

func TestParseVersion(t *testing.T) {
	for text, want := range map[string]uint64{"0": 0, "7": 7, "18446744073709551615": math.MaxUint64} {
		if got, err := propagation.ParseVersion(text); err != nil || got != want {
			t.Errorf("ParseVersion(%q) = %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "-1", "+1", "1.5", "0x1", "1_000", " 1", "18446744073709551616", "abc"} {
		if got, err := propagation.ParseVersion(text); err == nil || got != 0 {
			t.Errorf("ParseVersion(%q) = %d, %v; want an error", text, got, err)
		}
	}
}

// A replica has to doubt itself before others forget it, by more than a request
// takes; and to renew often enough that one lost write raises no doubt.
func TestTimesOfReplicasFitTogether(t *testing.T) {
	const longestRequest = 10 * time.Second
	if propagation.ReplicaDoubt+longestRequest >= propagation.ReplicaGone {
		t.Errorf("doubt begins after %v, others go on after %v", propagation.ReplicaDoubt, propagation.ReplicaGone)
	}
	if 3*propagation.RenewInterval > propagation.ReplicaDoubt {
		t.Errorf("renewed every %v, doubt begins after %v", propagation.RenewInterval, propagation.ReplicaDoubt)
	}
}
