package podstate_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	appsv1beta1 "github.com/sidecarset/operator/apis/apps/v1beta1"
	"github.com/sidecarset/operator/internal/podstate"
)

func TestFactsOf(t *testing.T) {
	yes := true
	owned := func(kind string, controller *bool) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: kind, Name: "x", Controller: controller}}
	}
	rule := func(action corev1.ContainerRestartRuleAction) []corev1.Container {
		return []corev1.Container{{Name: "a"}, {Name: "b", RestartPolicyRules: []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart}, {Action: action}}}}
	}
	tests := map[string]struct {
		pod  corev1.Pod
		want podstate.Facts
	}{
		"OnFailure under a Job":       {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, podstate.Facts{CountsRestarts: true}},
		"OnFailure under another":     {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Workflow", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, podstate.Facts{}},
		"OnFailure, a Job mentioned":  {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", nil)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyOnFailure}}, podstate.Facts{}},
		"Never under a Job":           {corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: owned("Job", &yes)}, Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever}}, podstate.Facts{}},
		"a rule of a container":       {corev1.Pod{Spec: corev1.PodSpec{Containers: rule(corev1.ContainerRestartRuleActionRestartAllContainers)}}, podstate.Facts{RestartsAll: true}},
		"a rule of an init container": {corev1.Pod{Spec: corev1.PodSpec{InitContainers: rule(corev1.ContainerRestartRuleActionRestartAllContainers)}}, podstate.Facts{RestartsAll: true}},
		"other rules":                 {corev1.Pod{Spec: corev1.PodSpec{Containers: rule(corev1.ContainerRestartRuleActionRestart)}}, podstate.Facts{}},
		"a mirror Pod":                {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.MirrorPodAnnotationKey: ""}}}, podstate.Facts{Mirror: true}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := podstate.FactsOf(&tc.pod); got != tc.want {
				t.Errorf("facts %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestTroubleIsWhatTheKubeletSays(t *testing.T) {
	waiting := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason}}
	}
	terminated := func(reason string) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason}}
	}
	status := func(state corev1.ContainerState) corev1.ContainerStatus { return corev1.ContainerStatus{State: state} }
	killed := terminated("OOMKilled")
	const container, native, once, plain = "", "Always", "Never", "plain"
	tests := map[string]struct {
		status  corev1.ContainerStatus
		kind    string
		want    string
		failure bool
	}{
		"is being created":                        {status(waiting("ContainerCreating")), container, "ContainerCreating", false},
		"waits for init containers":               {status(waiting("PodInitializing")), container, "", false},
		"image cannot be pulled":                  {status(waiting("ErrImagePull")), container, "ErrImagePull", true},
		"image cannot be pulled, again":           {status(waiting("ImagePullBackOff")), container, "ImagePullBackOff", true},
		"image has no name":                       {status(waiting("InvalidImageName")), container, "InvalidImageName", true},
		"crashes":                                 {corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: terminated("Error")}, container, "CrashLoopBackOff", true},
		"crashes for lack of memory":              {corev1.ContainerStatus{State: waiting("CrashLoopBackOff"), LastTerminationState: killed}, container, "OOMKilled", true},
		"runs after a lack of memory":             {corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}, LastTerminationState: killed}, container, "", false},
		"is ready":                                {corev1.ContainerStatus{Ready: true, State: waiting("CrashLoopBackOff")}, container, "", false},
		"failed":                                  {status(terminated("Error")), container, "Error", true},
		"was killed for memory":                   {status(killed), container, "OOMKilled", true},
		"ended without a word":                    {status(terminated("")), container, "", false},
		"a container has ended":                   {status(terminated("Completed")), container, "Completed", true},
		"a native sidecar has ended":              {status(terminated("Completed")), native, "Completed", true},
		"a container that runs once has ended":    {status(terminated("Completed")), once, "", false},
		"a container that runs once has failed":   {status(terminated("Error")), once, "Error", true},
		"a plain init container has ended":        {status(terminated("Completed")), plain, "", false},
		"a plain init container is being created": {status(waiting("ContainerCreating")), plain, "ContainerCreating", false},
		"a plain init container has failed":       {status(terminated("Error")), plain, "Error", true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := corev1.Container{Name: "side"}
			if tc.kind == native || tc.kind == once {
				c.RestartPolicy = new(corev1.ContainerRestartPolicy(tc.kind))
			}
			pod := &corev1.Pod{}
			pod.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: "log"}
			tc.status.Name = "side"
			if tc.kind == native || tc.kind == plain {
				pod.Spec.InitContainers, pod.Status.InitContainerStatuses = []corev1.Container{c}, []corev1.ContainerStatus{tc.status}
			} else {
				pod.Spec.Containers, pod.Status.ContainerStatuses = []corev1.Container{c}, []corev1.ContainerStatus{tc.status}
			}
			got, _ := podstate.FromPod(pod).Container(podstate.MakeName("side"))
			if got.Trouble.String() != tc.want || got.Trouble.IsFailure() != tc.failure {
				t.Errorf("the trouble is %q, a failure: %v; want %q", got.Trouble, got.Trouble.IsFailure(), tc.want)
			}
		})
	}
}

func TestRemovedSidecarSetsHaveAHashAndAreNotInTheList(t *testing.T) {
	tests := map[string]struct {
		list, hashes string
		want         []string
	}{
		"all is recorded":       {"a,b", `{"a":"1","b":"2"}`, nil},
		"one is removed":        {"a", `{"a":"1","b":"2"}`, []string{"b"}},
		"the list is removed":   {"", `{"b":"2","a":"1"}`, []string{"a", "b"}},
		"nothing was there":     {"", "", nil},
		"no more than are kept": {"", `{"a":"","b":"","c":"","d":"","e":""}`, []string{"a", "b", "c", "d"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{}
			pod.Annotations = map[string]string{appsv1beta1.AnnotationInjectedList: tc.list, appsv1beta1.AnnotationHash: tc.hashes}
			got := podstate.FromPod(pod).Removed
			if len(got) != len(tc.want) {
				t.Fatalf("%d names were removed, want %v", len(got), tc.want)
			}
			for i, name := range tc.want {
				if got[i] != podstate.MakeName(name) {
					t.Errorf("name %d is not %s", i, name)
				}
			}
		})
	}
}
