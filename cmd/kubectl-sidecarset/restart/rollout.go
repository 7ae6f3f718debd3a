package restart

import (
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// rolledOut reports whether a workload has replaced all Pods by those of its template, and says how
// far it is. The error says why it does not go on.
func rolledOut(object client.Object) (done bool, says string, err error) {
	switch o := object.(type) {
	case *appsv1.Deployment:
		return ofDeployment(o)
	case *appsv1.StatefulSet:
		return ofStatefulSet(o)
	case *appsv1.DaemonSet:
		return ofDaemonSet(o)
	}
	return true, "", nil
}

const notObserved = "its controller has not seen the change yet"

func ofDeployment(d *appsv1.Deployment) (bool, string, error) {
	s, want := &d.Status, wanted(d.Spec.Replicas)
	if s.ObservedGeneration < d.Generation {
		return false, notObserved, nil
	}
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded" {
			return false, "", errors.New("its rollout has made no progress within progressDeadlineSeconds")
		}
	}
	switch {
	case s.UpdatedReplicas < want:
		return false, fmt.Sprintf("%d of %d new Pods exist", s.UpdatedReplicas, want), nil
	case s.Replicas > s.UpdatedReplicas:
		return false, fmt.Sprintf("%d old Pods are still to end", s.Replicas-s.UpdatedReplicas), nil
	case s.AvailableReplicas < s.UpdatedReplicas:
		return false, fmt.Sprintf("%d of %d new Pods are available", s.AvailableReplicas, s.UpdatedReplicas), nil
	}
	return true, "", nil
}

func ofStatefulSet(set *appsv1.StatefulSet) (bool, string, error) {
	s, want := &set.Status, wanted(set.Spec.Replicas)
	switch {
	case s.ObservedGeneration < set.Generation:
		return false, notObserved, nil
	case s.UpdateRevision != s.CurrentRevision:
		return false, fmt.Sprintf("%d of %d Pods are new", s.UpdatedReplicas, want), nil
	case s.ReadyReplicas < want:
		return false, fmt.Sprintf("%d of %d Pods are ready", s.ReadyReplicas, want), nil
	case s.AvailableReplicas < want:
		return false, fmt.Sprintf("%d of %d Pods are available", s.AvailableReplicas, want), nil
	}
	return true, "", nil
}

func ofDaemonSet(d *appsv1.DaemonSet) (bool, string, error) {
	s := &d.Status
	switch want := s.DesiredNumberScheduled; {
	case s.ObservedGeneration < d.Generation:
		return false, notObserved, nil
	case s.UpdatedNumberScheduled < want:
		return false, fmt.Sprintf("%d of %d Pods are new", s.UpdatedNumberScheduled, want), nil
	case s.NumberAvailable < want:
		return false, fmt.Sprintf("%d of %d Pods are available", s.NumberAvailable, want), nil
	}
	return true, "", nil
}

func wanted(replicas *int32) int32 {
	if replicas == nil {
		return 1
	}
	return *replicas
}
