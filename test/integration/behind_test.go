package integration

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sidecarset/operator/internal/podwebhook"
	"github.com/sidecarset/operator/test/testkit"
)

// ofPodWebhooks is the sum of a metric of the API server over the operator's entries.
func ofPodWebhooks(t *testing.T, metric string) int {
	t.Helper()
	text, err := cluster.Kubectl(t.Context(), "", "get", "--raw", "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	total, err := testkit.SumOf(text, metric, `.pods.sidecarset.io"`)
	if err != nil {
		t.Fatal(err)
	}
	return int(total)
}

// behind creates Pods directly behind their SidecarSet. On a busy machine, a Pod may lack its
// sidecar in three cases: a warning to the author has foretold it; the API server's metric
// shows that no replica answered within the second that the entry of an unstored SidecarSet waits;
// or the SidecarSet was stored more than two seconds after its review.
type behind struct {
	author                      *user
	pods, warned, skipped, late int
}

func newBehind(t *testing.T) *behind {
	t.Helper()
	b := &behind{author: &user{name: "administrator"}}
	config := rest.CopyConfig(cluster.Config())
	config.WarningHandler = b.author
	var err error
	if b.author.Client, err = client.New(config, client.Options{Scheme: api.Scheme()}); err != nil {
		t.Fatal(err)
	}
	return b
}

// create creates a SidecarSet and a Pod directly behind it, which must have the containers.
func (b *behind) create(t *testing.T, set *unstructured.Unstructured, p *corev1.Pod, containers ...string) {
	t.Helper()
	const failedOpen = "apiserver_admission_webhook_fail_open_count"
	before, began := ofPodWebhooks(t, failedOpen), time.Now()
	if err := b.author.Create(t.Context(), set); err != nil {
		t.Fatal(err)
	}
	stored := time.Since(began)
	t.Cleanup(func() { deleteSidecarSet(t, set) })
	create(t, p)
	b.pods++
	got := testkit.ContainerNames(p.Spec.Containers)
	slices.Sort(got)
	slices.Sort(containers)
	told := b.author.told()
	switch diff := cmp.Diff(containers, got); {
	case diff == "":
	case strings.Contains(told, "not Ready yet"):
		b.warned++
	case ofPodWebhooks(t, failedOpen) > before:
		b.skipped++
	case stored > podwebhook.StoredSoon: // the leader may have removed the entry before
		b.late++
	default:
		t.Errorf("containers of Pod %s (-want +got):\n%s", p.Name, diff)
	}
}

// check fails the test if most Pods lacked their sidecar: then SidecarSets are not in
// force when they are admitted, however busy the machine is.
func (b *behind) check(t *testing.T) {
	t.Helper()
	if 2*(b.warned+b.skipped+b.late) > b.pods {
		t.Errorf("of %d Pods %d lack a sidecar after a warning, %d because no replica answered, and %d because the SidecarSet was stored late",
			b.pods, b.warned, b.skipped, b.late)
	}
}
