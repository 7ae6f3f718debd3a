package chaos

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/testkit"
)

// check fails the test unless every Pod was created with its sidecars.
func check(t *testing.T, figures testkit.Figures) {
	t.Helper()
	if figures.Created == 0 || figures.Failed > 0 || figures.Uninjected > 0 {
		t.Errorf("%s; failures: %q", &figures, figures.Errors)
	}
}

// Replicas are restarted one after the other, as by a rollout, again and again. No Pod fails, no conversion
// and no review of a SidecarSet, and the condition Ready does not change.
func TestARollingRestartFailsNoCall(t *testing.T) {
	replicas := startReplicas(t, 3, "--drain-grace=5s") // 5 s is the default
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "rolling")
	awaitInjection(t, replicas, namespace, "rolling", 1)
	testkit.AwaitReady(t, api, "rolling")
	stop := staysReady(t, "rolling")
	defer stop()

	load := testkit.Load{Clients: clients, Namespace: namespace, Labels: testkit.AppLabels("rolling"), Sidecars: []string{"rolling"}, Rate: testkit.Scaled(20, 50), DryRun: testkit.Scaled(true, false)}
	running, callers := load.Start(t.Context()), callAll(t, nil, namespace, "rolling")
	begin, restarts := time.Now(), 0
	for lasting := testkit.Scaled(10*time.Second, 60*time.Second); time.Since(begin) < lasting || restarts%3 > 0; restarts++ {
		if err := replicas.restart(t, restarts%3); err != nil {
			t.Error(err)
			break
		}
	}
	figures := running.Stop()
	calls := callers.end()
	testkit.Report(t, "replicas=3 restarts=%d rate=%d %s; other calls: %s", restarts, load.Rate, &figures, calls)
	check(t, figures)
	calls.check(t)
}

func readyCondition(ctx context.Context, sidecarSet string) (metav1.Condition, error) {
	set, err := testkit.Get(ctx, api, sidecarSet)
	if err != nil {
		return metav1.Condition{}, err
	}
	condition := meta.FindStatusCondition(set.Status.Conditions, appsv1beta1.ConditionReady)
	if condition == nil {
		return metav1.Condition{}, errors.New("there is no condition Ready")
	}
	return *condition, nil
}

// staysReady looks at a SidecarSet until stop is called, and fails the test if the
// condition Ready was anything but True.
func staysReady(t *testing.T, sidecarSet string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		ticks := time.NewTicker(50 * time.Millisecond)
		defer ticks.Stop()
		for ctx.Err() == nil {
			if said, err := readyCondition(ctx, sidecarSet); err == nil && said.Status != metav1.ConditionTrue {
				t.Errorf("SidecarSet %s is not ready: %+v", sidecarSet, said)
				return
			}
			<-ticks.C
		}
	})
	return func() {
		cancel()
		looking.Wait()
	}
}

// watchReadiness asks each replica ten times a second whether it is ready, until the
// returned function is called. That function fails the test if a replica was not ready.
func watchReadiness(t *testing.T, replicas []*deploy.Replica) (end func()) {
	c := newCallers(t, 100*time.Millisecond)
	for _, replica := range replicas {
		c.repeat(replica.Name+" is ready", replica.Ready)
	}
	return func() {
		t.Helper()
		asked := c.end()
		testkit.Report(t, "readiness: %s", asked)
		asked.check(t)
	}
}
