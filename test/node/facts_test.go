package node

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sidecarset/operator/test/deploy"
	"github.com/sidecarset/operator/test/recorded"
)

var renew = flag.Bool("record", false, "record the facts about the kubelet in internal/podstate/testdata/kubelet")

// fact is something that the operator relies on: a Pod, what happens to it, and what the kubelet
// publishes meanwhile.
type fact struct {
	says     string
	manifest string
	images   map[string]string // environments by tag; v1 listens if it is not here
	do       func(f *happening)
}

// happening is a fact while it is observed.
type happening struct {
	*testing.T
	name     string
	before   *corev1.Pod
	versions *recorder
	awaited  map[string]string // by resourceVersion
	last     *corev1.Pod
}

// await waits until the Pod passes the checks.
func (f *happening) await(what string, checks ...func(*corev1.Pod) error) *corev1.Pod {
	f.Helper()
	f.last = awaitPod(f.T, f.before, what, all(checks...))
	f.awaited[f.last.ResourceVersion] = what
	return f.last
}

// stays lets the kubelet work, and then takes the Pod as it is.
func (f *happening) stays(what string, checks ...func(*corev1.Pod) error) {
	f.Helper()
	letTheKubeletWork(f.T, f.before)
	f.await(what, checks...)
}

// set gives containers the image with a tag.
func (f *happening) set(tag string, containers ...string) *corev1.Pod {
	f.Helper()
	return setImages(f.T, f.before, images(f.name+":"+tag, containers...))
}

// back waits until containers run again, and the Pod is Ready.
func (f *happening) back(containers ...string) {
	f.Helper()
	f.await("it is back", runsAnother(f.last, containers...), isReady)
}

const (
	native     = `initContainers: [{name: native, image: "REGISTRY/NAME:v1", restartPolicy: Always}]`
	justTheApp = `containers: [{name: app, image: "REGISTRY/app:1"}]`
	withPlain  = `containers: [{name: app, image: "REGISTRY/app:1"}, {name: plain, image: "REGISTRY/NAME:v1", env: [{name: PORT, value: "8081"}]}]`
	probed     = `initContainers: [{name: native, image: "REGISTRY/NAME:v1", restartPolicy: Always, readinessProbe: {httpGet: {port: 8080, path: /ready}, periodSeconds: 1, failureThreshold: 2}}]`
)

// listens is an environment of a program that serves.
const listens = "PORT=8080"

// facts are by the name of their file, and of their images.
var facts = map[string]fact{
	"slow-pull": {
		"The kubelet kills sidecars before it pulls their images. Meanwhile the status of a Pod without probes stays as it was: Ready, with the old containers, of the new generation.",
		native + "\n  " + withPlain, map[string]string{"v2": listens}, func(f *happening) {
			closeGate(f.T, f.name)
			written := f.set("v2", "native", "plain")
			awaitPull(f.T, f.name)
			for _, port := range []int{8080, 8081} {
				if _, err := ask(f.Context(), f.before, http.MethodGet, port, "/version"); err == nil {
					f.Errorf("a sidecar still answers on port %d: it was not killed before the pull", port)
				}
			}
			f.stays("during the pull", isReady, observed(written.Generation))
			openGate(f.T, f.name)
			f.back("native", "plain")
		}},
	"slow-pull-probed": {
		"A readinessProbe notices that the sidecar is gone: the Pod is not Ready, and the old container still is in the status.",
		probed + "\n  " + justTheApp, map[string]string{"v2": listens}, func(f *happening) {
			closeGate(f.T, f.name)
			f.set("v2", "native")
			awaitPull(f.T, f.name)
			f.await("during the pull", isNotReady)
			openGate(f.T, f.name)
			f.back("native")
		}},
	"hook": {
		"While a postStart hook runs, the kubelet publishes nothing.",
		strings.Replace(probed, "readinessProbe:", "lifecycle: {postStart: {sleep: {seconds: 8}}}, readinessProbe:", 1) + "\n  " + justTheApp, map[string]string{"v2": listens}, func(f *happening) {
			f.set("v2", "native")
			f.back("native")
		}},
	"kill": {
		"The generation is observed before the kill, and a rollback during the kill is one restart.",
		"terminationGracePeriodSeconds: 60\n  " + native + "\n  " + justTheApp, map[string]string{"v1": listens + ",DEAF=1"}, func(f *happening) {
			awaitAnswer(f.T, f.before, 8080, "/signals", "0")
			written := f.set("missing", "native")
			awaitAnswer(f.T, f.before, 8080, "/signals", "1") // the container got SIGTERM, and ignores it
			f.await("during the kill", isReady, observed(written.Generation))
			back := f.set("v1", "native")
			end(f.T, f.before, 8080)
			f.await("it is back", runsAnother(f.before, "native"), isReady, observed(back.Generation))
			restartedOnce(f.T, f.last, "native")
		}},
	"rollback-during-pull": {
		"A rollback during a pull waits for its end. Then the kubelet publishes the new generation with the container of the image in between, before it kills that.",
		native + "\n  " + justTheApp, map[string]string{"v2": listens}, func(f *happening) {
			closeGate(f.T, f.name)
			f.set("v2", "native")
			awaitPull(f.T, f.name)
			back := f.set("v1", "native")
			f.stays("during the pull")
			openGate(f.T, f.name)
			f.await("it is back", func(pod *corev1.Pod) error {
				if now := status(pod, "native").ImageID; now != status(f.before, "native").ImageID {
					return fmt.Errorf("it runs %s", now)
				}
				return nil
			}, runsAnother(f.before, "native"), isReady, observed(back.Generation))
		}},
	"startup": {
		"A native sidecar whose startupProbe has not passed is not replaced before the probe has failed for good, although the generation is observed.",
		strings.Replace(native, "Always}", "Always, startupProbe: {httpGet: {port: 8080, path: /started}, periodSeconds: 1, failureThreshold: 40}}", 1) + "\n  " + justTheApp,
		map[string]string{"v2": listens + ",HANGING=1", "v3": listens}, func(f *happening) {
			f.set("v2", "native")
			hanging := f.await("it hangs", runsAnother(f.before, "native"), isNotReady)
			written := f.set("v3", "native")
			unchanged(f.T, hanging, f.await("the correction is observed", observed(written.Generation)), "native")
			f.last = hanging
			f.back("native")
		}},
	"retag": {
		"Another tag of the same image restarts the container. Its image ID stays equal.",
		native + "\n  " + justTheApp, map[string]string{"v1": "SAME=retag", "latest": "SAME=retag"}, func(f *happening) {
			f.set("latest", "native")
			f.back("native")
		}},
	"alias": {
		"If a Pod pulls the same image by another name, the status of running containers has the other name. They are not restarted.",
		native + "\n  " + withPlain, map[string]string{"v2": "SAME=alias", "v3": listens}, func(f *happening) {
			f.set("v2", "native")
			f.back("native")
			first := f.last
			image(f.T, "aa-alias:v1", "SAME=alias")
			startPod(f.T, "\nmetadata: {name: alias-puller}\nspec: {containers: [{name: app, image: \"REGISTRY/aa-alias:v1\"}]}")
			f.set("v3", "plain") // has the kubelet look at the Pod again
			f.await("it has another name", runsAnother(first, "plain"), isReady, func(pod *corev1.Pod) error {
				if was, is := status(first, "native"), status(pod, "native"); is.Image == was.Image {
					return fmt.Errorf("its image is still %s", is.Image)
				}
				return nil
			})
			unchanged(f.T, first, f.last, "native")
		}},
	"bad-image": {
		"With a bad tag, sidecars do not run, and the Pod is not Ready. A good one repairs it at once. The status does not show why a native sidecar that exited with 0 does not run.",
		strings.Replace(native, "[", `[{name: failing, image: "REGISTRY/NAME:failing", restartPolicy: Always, env: [{name: PORT, value: "8082"}]}, `, 1) + "\n  " + withPlain,
		map[string]string{"failing": "EXIT=143", "v3": listens}, func(f *happening) {
			f.set("missing", "native", "failing", "plain")
			f.await("all images back off", ended("native"), waitsFor("failing", "ImagePullBackOff"), waitsFor("plain", "ImagePullBackOff"), isNotReady)
			f.set("v3", "native", "failing", "plain")
			f.last = f.before
			f.back("native", "failing", "plain")
		}},
	"invalid-name": {
		"The kubelet notices an invalid image name only after it has killed the old container.",
		withPlain, nil, func(f *happening) {
			f.set("bad tag", "plain")
			f.await("the name is invalid", waitsFor("plain", "InvalidImageName"))
			f.set("v1", "plain")
			f.last = f.before
			f.back("plain")
		}},
	"crash": {
		"A container that crashes was started anew. A good image replaces it without a back-off.",
		native + "\n  " + justTheApp, map[string]string{"v2": "CRASHING=1", "v3": listens}, func(f *happening) {
			f.set("v2", "native")
			crashing := f.await("it crashes again and again", waitsFor("native", "CrashLoopBackOff"))
			f.set("v3", "native")
			f.await("it is back", isReady, func(pod *corev1.Pod) error {
				if status(pod, "native").ImageID == status(crashing, "native").ImageID {
					return errors.New("the image that crashes is still there")
				}
				return nil
			})
		}},
	"unready": {
		"A container that never gets ready was started anew, and is not up.",
		probed + "\n  " + justTheApp, map[string]string{"v2": listens + ",UNREADY=1"}, func(f *happening) {
			f.set("v2", "native")
			f.stays("it is not ready", runsAnother(f.before, "native"), isNotReady)
			tell(f.T, f.last, 8080, "/ready")
			f.last = f.before
			f.back("native")
		}},
	"never": {
		"Under restartPolicy Never, a plain sidecar that a bad image has stopped is never started again. A native one is.",
		"restartPolicy: Never\n  " + native + "\n  " + withPlain, map[string]string{"v3": listens}, func(f *happening) {
			f.set("missing", "native", "plain")
			f.await("both are down", ended("native"), ended("plain"))
			written := f.set("v3", "native", "failing", "plain")
			f.stays("the native one is back, and the plain one is not", runsAnother(f.before, "native"), ended("plain"), isNotReady, observed(written.Generation))
		}},
	"resize": {
		"A resize that fits is done without a restart. One for which the node has no room is put off, and does not keep an image from changing.",
		sizedNative(`requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 64Mi}`, "") + "\n  " + justTheApp, map[string]string{"v2": listens}, func(f *happening) {
			startPod(f.T, "\nmetadata: {name: resize-neighbour}\nspec: {containers: [{name: app, image: \"REGISTRY/app:1\", resources: {requests: {cpu: 50m}}}]}")
			node, err := clients.CoreV1().Nodes().Get(f.Context(), nodeName, metav1.GetOptions{})
			if err != nil {
				f.Fatal(err)
			}
			whole := fmt.Sprintf(`{"requests":{"cpu":%q}}`, node.Status.Allocatable.Cpu())
			written := resize(f.T, f.before, "native", whole)
			f.await("it is deferred", pending(corev1.PodReasonDeferred), isReady, observed(written.Generation))
			written = resize(f.T, f.before, "native", `{"requests":{"cpu":"20m"}}`)
			unchanged(f.T, f.before, f.await("it is done", resized(written.Generation, "native", "20m"), isReady), "native")
			written = resize(f.T, f.before, "native", whole)
			f.await("it is deferred again", pending(corev1.PodReasonDeferred), observed(written.Generation))
			f.set("v2", "native")
			f.await("the image has changed", runsAnother(f.before, "native"), isReady, pending(corev1.PodReasonDeferred))
			restartedOnce(f.T, f.last, "native")
		}},
	"resize-infeasible": {
		"A resize that the node's policies exclude is infeasible. The Pod still runs.",
		sizedNative(`limits: {cpu: 10m, memory: 16Mi}`, "") + "\n  " + `containers: [{name: app, image: "REGISTRY/app:1", resources: {limits: {cpu: 10m, memory: 16Mi}}}]`, nil, func(f *happening) {
			written := resize(f.T, f.before, "native", `{"requests":{"cpu":"20m"},"limits":{"cpu":"20m"}}`)
			unchanged(f.T, f.before, f.await("it is infeasible", pending(corev1.PodReasonInfeasible), isReady, observed(written.Generation)), "native")
		}},
	"resize-error": {
		"A memory limit below what the container uses is an error. The container still runs, and another limit repairs it.",
		sizedNative(`requests: {cpu: 10m, memory: 16Mi}, limits: {memory: 300Mi}`, "") + "\n  " + justTheApp, map[string]string{"v1": listens + ",MEMORY=100"}, func(f *happening) {
			awaitAnswer(f.T, f.before, 8080, "/version", "") // the program listens only when it uses the memory
			written := resize(f.T, f.before, "native", `{"limits":{"memory":"32Mi"}}`)
			f.await("it has failed", failedResize, observed(written.Generation))
			written = resize(f.T, f.before, "native", `{"limits":{"memory":"300Mi"},"requests":{"cpu":"20m"}}`)
			unchanged(f.T, f.before, f.await("it is repaired", resized(written.Generation, "native", "20m")), "native")
		}},
	"resize-restart": {
		"Where the resizePolicy says RestartContainer, a resize restarts this container.",
		sizedNative(`requests: {cpu: 10m}`, "resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}], ") + "\n  " + justTheApp, nil, func(f *happening) {
			written := resize(f.T, f.before, "native", `{"requests":{"cpu":"20m"}}`)
			f.await("it is done", resized(written.Generation, "native", "20m"))
			restartedOnce(f.T, f.last, "native")
		}},
}

// sizedNative is the native sidecar with resources, and with more members.
func sizedNative(resources, more string) string {
	return strings.Replace(native, "restartPolicy:", more+"resources: {"+resources+"}, restartPolicy:", 1)
}

// TestFacts compares what the kubelet publishes with what is recorded of another version, or records
// it. Unit tests of package podstate replay the records.
func TestFacts(t *testing.T) {
	t.Parallel()
	file := func(name string) string {
		return filepath.Join(deploy.Root(), "internal/podstate/testdata/kubelet", name+".yaml")
	}
	stored, fresh := map[string]*recorded.Sequence{}, true
	for name := range facts {
		s, err := recorded.Read(file(name))
		if err != nil && !*renew {
			t.Fatal(err)
		}
		stored[name], fresh = s, fresh && s != nil && s.Kubelet == cluster.Version
	}
	if fresh && !*renew {
		t.Skip("SKIP: the facts are recorded with kubelet " + cluster.Version + ", and the unit tests replay them; -record renews them")
	}
	for name, fact := range facts {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := fact.observe(t, name)
			if err := s.Replay(); err != nil {
				t.Error(err)
			}
			if *renew {
				if err := s.Write(file(name)); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(stored[name].Story(), s.Story()); diff != "" {
				t.Errorf("%s\nThe operator is told something else than with kubelet %s (-then +now). If that is right, record it with -record:\n%s", fact.says, stored[name].Kubelet, diff)
			}
		})
	}
}

// observe lets a fact happen, and returns what the kubelet has published.
func (c fact) observe(t *testing.T, name string) *recorded.Sequence {
	t.Helper()
	for tag, env := range c.images {
		image(t, name+":"+tag, strings.Split(env, ",")...)
	}
	if c.images["v1"] == "" {
		image(t, name+":v1", listens)
	}
	f := &happening{T: t, name: name, awaited: map[string]string{}}
	f.before = startPod(t, strings.ReplaceAll("\nmetadata: {name: NAME}\nspec:\n  "+c.manifest+"\n", "NAME", name))
	f.versions, f.last = record(t, f.before), f.before
	f.awaited[f.before.ResourceVersion] = "it runs"
	c.do(f)
	unchanged(t, f.before, f.last, "app")
	pods, seen := f.versions.until(t, f.last)
	return recorded.New(c.says, cluster.Version, pods, seen, f.awaited)
}

// waitsFor returns a check that the container waits for this reason.
func waitsFor(container, reason string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if is := status(pod, container); is.State.Waiting == nil || is.State.Waiting.Reason != reason {
			return fmt.Errorf("%s is %+v", container, is.State)
		}
		return nil
	}
}

// ended returns a check that the container has ended, and the status gives no reason.
func ended(container string) func(*corev1.Pod) error {
	return func(pod *corev1.Pod) error {
		if is := status(pod, container); is.State.Terminated == nil {
			return fmt.Errorf("%s is %+v", container, is.State)
		}
		return nil
	}
}
