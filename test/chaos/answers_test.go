package chaos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/test/await"
	"github.com/sidecarset/operator/test/testkit"
)

// First, replicas run and pass their probes, but API servers do not reach them. Then API
// servers reach them, and the replicas hang. In both cases each selected Pod is refused, so
// Ready would be wrong. The leader may need more than a minute to notice the second case, so
// the short form leaves it out.
func TestReadyIsTakenBackWhileCallsAreNotAnswered(t *testing.T) {
	startControllers(t, 1, steadyLeases...)
	webhooks := startReplicas(t, 2, "--role=webhook")
	namespace := newNamespace(t)
	applySidecarSet(t, namespace, "called")
	testkit.AwaitReady(t, api, "called")
	outages := []struct {
		name       string
		begin, end func() error
	}{
		{"withdrawn", func() error { return webhooks.withdraw(t.Context()) }, func() error {
			var errs []error
			for _, replica := range webhooks.replicas {
				errs = append(errs, replica.AwaitReady(t.Context()), operator.AddEndpoint(t.Context(), replica))
			}
			return errors.Join(errs...)
		}},
		{"hanging", func() error { return webhooks.signal(syscall.SIGSTOP) }, func() error { return webhooks.signal(syscall.SIGCONT) }},
	}
	for _, outage := range outages[:testkit.Scaled(1, 2)] {
		if err := outage.begin(); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		var said metav1.Condition
		await.Within(t, testkit.Scaled(await.Patience, 4*await.Patience), "a SidecarSet that is not ready", func(ctx context.Context) (err error) {
			said, err = readyCondition(ctx, "called")
			if err == nil && said.Status == metav1.ConditionTrue {
				err = fmt.Errorf("it says %+v", said)
			}
			return err
		})
		if said.Reason != appsv1beta1.ReasonNoReplica {
			t.Errorf("%s: it says %+v", outage.name, said)
		}
		noticed := time.Since(began)
		if err := outage.end(); err != nil {
			t.Fatal(err)
		}
		ended := time.Now()
		testkit.AwaitReady(t, api, "called")
		testkit.Report(t, "%s: not Ready after %s, Ready again %s after the end", outage.name, testkit.Rounded(noticed), testkit.Rounded(time.Since(ended)))
	}
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
