package chaos

import (
	"bytes"
	"context"
	"crypto/x509"
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

// observer looks at the leaves that replicas serve.
type observer struct {
	replicas []*deploy.Replica
	stop     context.CancelFunc
	done     sync.WaitGroup

	mu   sync.Mutex
	last []*x509.Certificate // by replica
	cas  []map[string]bool   // by replica: key identifiers of the CAs whose leaves it has served
	seen changes
}

// changes counts the changes of certificates.
type changes struct {
	authorities int // CAs of which every replica has served a leaf, without the first CA
	leaves      int // of all replicas, without the first leaf of each
	err         error
}

// watchLeaves looks at the replicas' leaves until end is called, or the test ends.
func watchLeaves(t *testing.T, replicas []*deploy.Replica) *observer {
	ctx, stop := context.WithCancel(t.Context())
	o := &observer{replicas: replicas, stop: stop, last: make([]*x509.Certificate, len(replicas))}
	for i := range replicas {
		o.cas = append(o.cas, map[string]bool{})
		o.done.Go(func() { o.follow(ctx, i) })
	}
	t.Cleanup(func() { o.end() })
	return o
}

func (o *observer) end() changes {
	o.stop()
	o.done.Wait()
	return o.count()
}

func (o *observer) follow(ctx context.Context, i int) {
	ticks := time.NewTicker(100 * time.Millisecond)
	defer ticks.Stop()
	for {
		asked := time.Now()
		leaf, err := o.replicas[i].Leaf(ctx)
		if ctx.Err() != nil {
			return
		}
		o.note(i, asked, leaf, err)
		select {
		case <-ctx.Done():
			return
		case <-ticks.C:
		}
	}
}

func (o *observer) note(i int, asked time.Time, leaf *x509.Certificate, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case err != nil:
		o.seen.err = fmt.Errorf("looking at %s: %w", o.replicas[i].Name, err)
		return
	case asked.After(leaf.NotAfter):
		o.seen.err = fmt.Errorf("%s served a leaf that had expired at %s", o.replicas[i].Name, leaf.NotAfter)
	}
	if o.last[i] != nil && !leaf.Equal(o.last[i]) {
		o.seen.leaves++
	}
	o.last[i] = leaf
	o.cas[i][string(leaf.AuthorityKeyId)] = true
}

func (o *observer) count() changes {
	o.mu.Lock()
	defer o.mu.Unlock()
	counted := o.seen
	for ca := range o.cas[0] {
		everywhere := true
		for _, cas := range o.cas {
			everywhere = everywhere && cas[ca]
		}
		if everywhere {
			counted.authorities++
		}
	}
	counted.authorities = max(counted.authorities-1, 0)
	return counted
}

// serves returns an error unless all replicas serve leaves of a CA.
func (o *observer) serves(keyID []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, leaf := range o.last {
		if leaf == nil || !bytes.Equal(leaf.AuthorityKeyId, keyID) {
			return fmt.Errorf("%s serves a leaf of another CA", o.replicas[i].Name)
		}
	}
	return nil
}

// callers make every kind of call that uses the operator's certificate, again and again.
type callers struct {
	stop context.CancelFunc
	done sync.WaitGroup

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

// callAll calls until end is called, or the test ends.
func callAll(t *testing.T, replicas []*deploy.Replica, namespace, sidecarSet string) *callers {
	ctx, stop := context.WithCancel(t.Context())
	c := &callers{stop: stop}
	for _, replica := range replicas {
		c.repeat(ctx, "calling "+replica.Name+" directly", func(ctx context.Context) error {
			return replica.Injects(ctx, sidecarSet, namespace, testkit.AppLabels(sidecarSet))
		})
	}
	for i, client := range clients {
		c.repeat(ctx, fmt.Sprintf("converting through API server %d", i+1), func(ctx context.Context) error {
			return convert(ctx, client, sidecarSet)
		})
		c.repeat(ctx, fmt.Sprintf("admitting a SidecarSet through API server %d", i+1), func(ctx context.Context) error {
			return admit(ctx, client, sidecarSet)
		})
	}
	t.Cleanup(func() { c.end() })
	return c
}

func convert(ctx context.Context, client kubernetes.Interface, name string) error {
	return client.CoreV1().RESTClient().Get().AbsPath("/apis/apps.kruise.io/v1alpha1/sidecarsets", name).Do(ctx).Error()
}

// admit updates a SidecarSet without leaving anything behind.
func admit(ctx context.Context, client kubernetes.Interface, name string) error {
	return client.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath("/apis/apps.kruise.io/v1beta1/sidecarsets", name).
		Param("dryRun", metav1.DryRunAll).Body(fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/at":%q}}}`, time.Now())).Do(ctx).Error()
}

// repeat makes one kind of call, five times a second.
func (c *callers) repeat(ctx context.Context, what string, once func(context.Context) error) {
	c.done.Go(func() {
		ticks := time.NewTicker(200 * time.Millisecond)
		defer ticks.Stop()
		for {
			begin := time.Now()
			err := once(ctx)
			if ctx.Err() != nil {
				return
			}
			c.note(what, time.Since(begin), err)
			select {
			case <-ctx.Done():
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
