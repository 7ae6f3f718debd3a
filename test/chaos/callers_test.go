package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// callers make calls again and again, of several kinds at the same time.
type callers struct {
	ctx   context.Context //nolint:containedctx // of the goroutines that it starts
	stop  context.CancelFunc
	every time.Duration
	done  sync.WaitGroup

	mu    sync.Mutex
	calls calls
}

// calls says how calls went.
type calls struct {
	made, failed int
	times        []time.Duration
	errs         []error
}

// String is in the form that figures are reported in.
func (c calls) String() string {
	return fmt.Sprintf("made=%d failed=%d %s", c.made, c.failed, testkit.Spread(c.times))
}

func (c calls) check(t *testing.T) {
	t.Helper()
	if c.failed > 0 || c.made == 0 {
		t.Errorf("calls failed: %s: %v", c, errors.Join(c.errs...))
	}
}

// newCallers makes calls until end is called, or the test ends.
func newCallers(t *testing.T, every time.Duration) *callers {
	ctx, stop := context.WithCancel(t.Context())
	c := &callers{ctx: ctx, stop: stop, every: every}
	t.Cleanup(func() { c.end() })
	return c
}

// callAll makes every kind of call that uses the operator's certificate, five times a second: to each replica,
// and through each API server.
func callAll(t *testing.T, clients []kubernetes.Interface, replicas []*deploy.Replica, namespace, sidecarSet string) *callers {
	c := newCallers(t, 200*time.Millisecond)
	for _, replica := range replicas {
		c.repeat("calling "+replica.Name+" directly", func(ctx context.Context) error {
			return replica.Injects(ctx, sidecarSet, namespace, testkit.AppLabels(sidecarSet))
		})
	}
	for i, client := range clients {
		c.repeat(fmt.Sprintf("converting through API server %d", i+1), func(ctx context.Context) error {
			return client.CoreV1().RESTClient().Get().AbsPath("/apis/apps.kruise.io/v1alpha1/sidecarsets").Do(ctx).Error()
		})
		c.repeat(fmt.Sprintf("admitting a SidecarSet through API server %d", i+1), func(ctx context.Context) error {
			return admit(ctx, client, sidecarSet)
		})
	}
	return c
}

// admit updates a SidecarSet without leaving anything behind.
func admit(ctx context.Context, client kubernetes.Interface, name string) error {
	return client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/apps.kruise.io/v1beta1/sidecarsets", name).
		Param("dryRun", metav1.DryRunAll).Body(fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())).Do(ctx).Error()
}

// repeat makes one kind of call.
func (c *callers) repeat(what string, once func(context.Context) error) {
	c.done.Go(func() {
		ticks := time.NewTicker(c.every)
		defer ticks.Stop()
		for {
			begin := time.Now()
			err := once(c.ctx)
			if c.ctx.Err() != nil {
				return
			}
			c.note(what, time.Since(begin), err)
			select {
			case <-c.ctx.Done():
				return
			case <-ticks.C:
			}
		}
	})
}

func (c *callers) note(what string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls.made++
	c.calls.times = append(c.calls.times, took)
	if err != nil {
		c.calls.failed++
		c.calls.errs = append(c.calls.errs, fmt.Errorf("%s: %s: %w", time.Now().Format(time.StampMilli), what, err))
	}
}

func (c *callers) count() calls {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls
}

func (c *callers) end() calls {
	c.stop()
	c.done.Wait()
	return c.count()
}
