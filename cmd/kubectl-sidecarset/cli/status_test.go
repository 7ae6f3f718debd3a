package cli

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/cmd/kubectl-sidecarset/progress"
)

const inTheMiddle = `
metadata: {name: log-agent, generation: 2}
spec: {updateStrategy: {maxUnavailable: "10%"}}
status:
  observedGeneration: 2
  matchedPods: 40
  updatedPods: 14
  updatedReadyPods: 12
  uninjectedPods: 1
  latestRevision: log-agent-b
  revisions: [{name: log-agent-a, pods: 26, readyPods: 26}, {name: log-agent-b, pods: 14, readyPods: 12}]
  blockedPods: [{reason: ImmutableFieldChanged, pods: 5, first: [shop/web-1, shop/web-2, shop/web-3]}]
  uninjected: [{reason: OlderThanSidecarSet, pods: 1, first: [shop/old]}]
  conditions:
  - {type: Ready, status: "True", reason: Injecting, message: New Pods get the sidecars., observedGeneration: 2}
  - {type: Progressing, status: "True", reason: RollingOut, message: 14 of 40 matched Pods are updated. 26 Pods are still to be updated., observedGeneration: 2}
  - {type: Degraded, status: "True", reason: PodsBlocked, message: 5 Pods cannot be updated., observedGeneration: 2}
`

func inState(t *testing.T, text string) *progress.Summary {
	t.Helper()
	set := &appsv1beta1.SidecarSet{}
	if err := yaml.Unmarshal([]byte(text), set); err != nil {
		t.Fatal(err)
	}
	return progress.Of(set)
}

// standing is a rollout that a bad image has stopped, while no replica can be called.
const standing = `
metadata: {name: log-agent, generation: 3}
status:
  observedGeneration: 3
  matchedPods: 4
  updatedPods: 1
  latestRevision: log-agent-b
  revisions: [{name: log-agent-a, pods: 3, readyPods: 3}, {name: log-agent-b, pods: 1}]
  notRunningPods: [{reason: ImagePullBackOff, pods: 1, first: [shop/web-1], message: log-agent}]
  conditions:
  - {type: Ready, status: "False", reason: NoReplica, message: No replica answers., observedGeneration: 3}
  - {type: Progressing, status: "False", reason: Stalled, message: The rollout waits for shop/web-1., observedGeneration: 3}
  - {type: Degraded, status: "True", reason: Stalled, message: The rollout waits for shop/web-1., observedGeneration: 3}
`

// held is an edit that new Pods do not get yet.
const held = `
metadata: {name: log-agent, generation: 3}
status:
  observedGeneration: 3
  matchedPods: 4
  updatedPods: 1
  updatedReadyPods: 1
  latestRevision: log-agent-b
  stableRevision: log-agent-a
  conditions:
  - {type: Ready, status: "False", reason: RevisionNotStable, message: "New Pods get log-agent-a until running Pods are available with log-agent-b: 1 of 3 available.", observedGeneration: 3}
  - {type: Progressing, status: "True", reason: RollingOut, message: 1 of 4 matched Pods is updated., observedGeneration: 3}
`

func TestPicture(t *testing.T) {
	for state, want := range map[string]string{inTheMiddle: `sidecarset/log-agent: 14 of 40 Pods updated, 12 of these ready
  new Pods      Injecting: New Pods get the sidecars.
  rollout       RollingOut: 14 of 40 matched Pods are updated. 26 Pods are still to be updated.
  revision      log-agent-a: 26 Pods, 26 ready
  revision      log-agent-b: 14 Pods, 12 ready, current
  blocked       5 ImmutableFieldChanged: shop/web-1, shop/web-2, shop/web-3 and 2 more; more changed than an update in place can write; recreate the Pod
  not injected  1 OlderThanSidecarSet: shop/old; created before the SidecarSet; recreate the Pod
  to do         kubectl sidecarset rollout restart log-agent restarts the workloads of the 6 Pods that need it
`, standing: `sidecarset/log-agent: 1 of 4 Pods updated, 0 of these ready
  new Pods      NoReplica: No replica answers.
  rollout       Stalled: The rollout waits for shop/web-1.
  revision      log-agent-a: 3 Pods, 3 ready
  revision      log-agent-b: 1 Pods, 0 ready, current
  not running   1 ImagePullBackOff: shop/web-1; the image cannot be pulled; container log-agent; correct the image in the SidecarSet, or give it the pull Secret that is missing (spec.imagePullSecrets)
  to do         kubectl sidecarset rollout undo log-agent goes back to revision log-agent-a, which 3 ready Pods have; the Pods that broke are repaired at once
`, held: `sidecarset/log-agent: 1 of 4 Pods updated, 1 of these ready
  new Pods      RevisionNotStable: New Pods get log-agent-a until running Pods are available with log-agent-b: 1 of 3 available.
                That is meant: sidecarset.io/new-pods is Stable.
  rollout       RollingOut: 1 of 4 matched Pods is updated.
`} {
		if got := (&app{}).picture(inState(t, state)); got != want {
			t.Errorf("got:\n%s\nwant:\n%s", got, want)
		}
	}
}

// watching reads a SidecarSet from a fake API server, which a test changes between the reads.
func watching(t *testing.T) (a *app, c client.Client, out *bytes.Buffer) {
	t.Helper()
	object := objectOf(t, inTheMiddle)
	object.SetGroupVersionKind(appsv1beta1.Kind)
	out = &bytes.Buffer{}
	return &app{Streams: Streams{Out: out, ErrOut: out}}, fake.NewClientBuilder().WithObjects(object).Build(), out
}

func TestFollowSurvivesFailuresAndEndsWithTheSidecarSet(t *testing.T) {
	t.Parallel()
	a, working, out := watching(t)
	reads := 0
	c := interceptor.NewClient(working.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
		switch reads++; reads {
		case 2:
			return errors.New("connection refused")
		case 4:
			return apierrors.NewNotFound(schema.GroupResource{Resource: "sidecarsets"}, key.Name)
		}
		return c.Get(ctx, key, object, options...)
	}})
	seen := 0
	err := a.follow(t.Context(), c, "log-agent", 0, func(*progress.Summary) (bool, error) { seen++; return false, nil })
	if !apierrors.IsNotFound(err) || seen != 2 || !strings.Contains(out.String(), "trying again: reading SidecarSet \"log-agent\": connection refused") {
		t.Errorf("seen %d times, then %v: %s", seen, err, out)
	}
	if err := a.follow(t.Context(), c, "other", 0, nil); !apierrors.IsNotFound(err) {
		t.Errorf("follow(other): %v", err)
	}
}

func TestAwaitSaysEachThingOnceAndGivesUp(t *testing.T) {
	t.Parallel()
	a, working, out := watching(t)
	ctx, cancel := context.WithCancel(t.Context())
	reads := 0
	c := interceptor.NewClient(working.(client.WithWatch), interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
		if reads++; reads == 3 {
			defer cancel()
		}
		return c.Get(ctx, key, object, options...)
	}})
	err := a.await(ctx, c, "log-agent", 0)
	const moving = "14 of 40 matched Pods are updated. 26 Pods are still to be updated."
	if err == nil || err.Error() != `gave up waiting for the rollout of SidecarSet "log-agent": `+moving {
		t.Errorf("await: %v", err)
	}
	if want := `Waiting for the rollout of "log-agent" to finish: ` + moving + "\n"; out.String() != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

func TestStatusOfAllShowsFirstWhatNeedsALook(t *testing.T) {
	t.Parallel()
	whole := strings.Replace(inTheMiddle, `Degraded, status: "True"`, `Degraded, status: "False"`, 1)
	out := &bytes.Buffer{}
	a := &app{Streams: Streams{Out: out, ErrOut: out}}
	if err := a.list([]*progress.Summary{
		inState(t, strings.NewReplacer("name: log-agent,", "name: a,", "RollingOut", "Complete").Replace(whole)),
		inState(t, strings.Replace(whole, "name: log-agent,", "name: b,", 1)),
		inState(t, inTheMiddle),
		inState(t, strings.NewReplacer("name: log-agent,", "name: new,", "observedGeneration: 2", "observedGeneration: 1").Replace(whole)),
	}); err != nil {
		t.Fatal(err)
	}
	const want = `NAME        MATCHED   UPDATED   READY   NEW PODS    ROLLOUT      TO DO
log-agent   40        14        12      Injecting   RollingOut   kubectl sidecarset status log-agent
new         40        14        12      Unknown     RollingOut   kubectl sidecarset status new
b           40        14        12      Injecting   RollingOut
a           40        14        12      Injecting   Complete
`
	if out.String() != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}
