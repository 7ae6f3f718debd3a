package node

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/sidecarset/operator/test/await"
)

// restartPolicy Never does not keep a running container from being replaced.
func TestARunningContainerIsReplacedUnderNever(t *testing.T) {
	t.Parallel()
	image(t, "never:v1")
	image(t, "never:v2", "VERSION=v2")
	before := startPod(t, `
metadata: {name: never}
spec:
  restartPolicy: Never
  initContainers: [{name: native, image: "REGISTRY/never:v1", restartPolicy: Always}]
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/never:v1"}
`)
	setImages(t, before, images("never:v2", "native", "plain"))
	after := awaitPod(t, before, "both run anew", all(runsAnother(before, "native", "plain"), isReady))
	unchanged(t, before, after, "app")
}

// If a bad image stopped a plain sidecar, it is never started again under restartPolicy Never,
// and under OnFailure if it exited with 0. Native sidecars are started again.
func TestABadImageIsForGoodWhereContainersAreNotRestarted(t *testing.T) {
	t.Parallel()
	image(t, "forgood:v1")
	image(t, "forgood:v1-failing", "EXIT=143")
	image(t, "forgood:v3", "VERSION=v3")
	for _, policy := range []string{"Never", "OnFailure"} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			before := startPod(t, strings.NewReplacer("NAME", "forgood-"+strings.ToLower(policy), "POLICY", policy).Replace(`
metadata: {name: NAME}
spec:
  restartPolicy: POLICY
  initContainers: [{name: native, image: "REGISTRY/forgood:v1", restartPolicy: Always}]
  containers:
  - {name: app, image: "REGISTRY/app:1"}
  - {name: plain, image: "REGISTRY/forgood:v1"}
  - {name: plain-failing, image: "REGISTRY/forgood:v1-failing"}
`))
			setImages(t, before, images("forgood:missing", "native", "plain", "plain-failing"))
			awaitPod(t, before, "all are down", all(down("native"), down("plain"), down("plain-failing")))
			written := setImages(t, before, images("forgood:v3", "native", "plain", "plain-failing"))
			after := awaitPod(t, before, "those that are restarted run", func(pod *corev1.Pod) error {
				err := errors.Join(runsAnother(before, "native")(pod), observed(written.Generation)(pod))
				if policy == "OnFailure" {
					err = errors.Join(err, runsAnother(before, "plain-failing")(pod))
				}
				return err
			})
			dead := []string{"plain"}
			if policy == "Never" {
				dead = append(dead, "plain-failing")
			}
			letTheKubeletWork(t, before)
			after = getPod(t, after)
			for _, name := range dead {
				if is := status(after, name); is.State.Terminated == nil {
					t.Errorf("%s is %+v; want it to stay as it ended", name, is)
				}
			}
			if err := isNotReady(after); err != nil {
				t.Error(err)
			}
			unchanged(t, before, after, "app")
		})
	}
}

// down returns a check that the container does not run.
func down(container string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if is := status(pod, container); is.State.Running != nil {
			return fmt.Errorf("%s runs", container)
		}
		return nil
	}
}

func createJob(t *testing.T, manifest string) *batchv1.Job {
	t.Helper()
	job := &batchv1.Job{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(manifest, "REGISTRY", registry)), job); err != nil {
		t.Fatal(err)
	}
	job, err := clients.BatchV1().Jobs("default").Create(t.Context(), job, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = clients.BatchV1().Jobs("default").Delete(context.WithoutCancel(t.Context()), job.Name, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)})
	})
	return job
}

// podOf returns the Pod of a Job when it is Ready.
func podOf(t *testing.T, job *batchv1.Job) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	await.Eventually(t, "the Pod of Job "+job.Name, func(ctx context.Context) error {
		pods, err := clients.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "job-name=" + job.Name})
		if err == nil && len(pods.Items) != 1 {
			err = fmt.Errorf("it has %d", len(pods.Items))
		}
		if err == nil {
			pod = &pods.Items[0]
		}
		return err
	})
	return awaitPod(t, pod, "Ready", isReady)
}

// awaitJob waits for a condition of a Job, and returns its reason.
func awaitJob(t *testing.T, job *batchv1.Job, condition batchv1.JobConditionType) string {
	t.Helper()
	var reason string
	await.Within(t, 2*await.Patience, fmt.Sprintf("Job %s: %s", job.Name, condition), func(ctx context.Context) error {
		now, err := clients.BatchV1().Jobs("default").Get(ctx, job.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range now.Status.Conditions {
			if c.Type == condition && c.Status == corev1.ConditionTrue {
				reason = c.Reason
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", now.Status)
	})
	return reason
}

// A Job's Pod with a native sidecar completes, whether the sidecar was replaced or not.
func TestAJobWithANativeSidecarCompletes(t *testing.T) {
	t.Parallel()
	image(t, "job:v1")
	image(t, "job:v2", "VERSION=v2")
	image(t, "job-app:v1", "PORT=8090")
	job := createJob(t, `
metadata: {name: completes}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      initContainers: [{name: native, image: "REGISTRY/job:v1", restartPolicy: Always}]
      containers: [{name: app, image: "REGISTRY/job-app:v1"}]
`)
	before := podOf(t, job)
	setImages(t, before, images("job:v2", "native"))
	after := awaitPod(t, before, "it is replaced", runsAnother(before, "native"))
	unchanged(t, before, after, "app")
	finish(t, after, 8090)
	awaitJob(t, job, batchv1.JobComplete)
}

// A Job whose Pods have restartPolicy OnFailure counts restarts of all containers:
// with backoffLimit 0, one replaced sidecar fails it.
func TestAReplacedSidecarFailsAJobWithoutBackoff(t *testing.T) {
	t.Parallel()
	image(t, "nobackoff:v1")
	image(t, "nobackoff:v2", "VERSION=v2")
	job := createJob(t, `
metadata: {name: nobackoff}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: OnFailure
      terminationGracePeriodSeconds: 1
      initContainers: [{name: native, image: "REGISTRY/nobackoff:v1", restartPolicy: Always}]
      containers: [{name: app, image: "REGISTRY/app:1"}]
`)
	before := podOf(t, job)
	setImages(t, before, images("nobackoff:v2", "native"))
	if reason := awaitJob(t, job, batchv1.JobFailed); reason != batchv1.JobReasonBackoffLimitExceeded {
		t.Errorf("the Job failed because of %s", reason)
	}
}
