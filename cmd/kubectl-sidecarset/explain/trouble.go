package explain

// NotRunning returns the meaning of the kubelet's reason for a sidecar that does not run, and what to
// do.
func NotRunning(reason string) (meaning, remedy string) {
	switch reason {
	case "ErrImagePull", "ImagePullBackOff":
		return "the image cannot be pulled", "correct the image in the SidecarSet, or give it the pull Secret that is missing (spec.imagePullSecrets)"
	case "InvalidImageName":
		return "the image is no name of an image", "correct the image in the SidecarSet"
	case "CreateContainerConfigError":
		return "something that the container names is missing, such as a Secret or a ConfigMap", "kubectl describe pod says what; create it, or correct the SidecarSet"
	case "CrashLoopBackOff", "Error", "OOMKilled", "Completed":
		return "the container ends, and the kubelet starts it again after a while", "kubectl logs -c CONTAINER --previous says why; correct the SidecarSet"
	case "ContainerCreating":
		return "the container has been waiting to be created for ten minutes", "kubectl describe pod says for what, such as a volume"
	}
	return "the kubelet does not start the container", "kubectl describe pod says why"
}
