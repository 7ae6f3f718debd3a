package defaults

// PolicyFollowsTag reports whether the imagePullPolicy of two revisions of a container differs
// because their images do: one has the tag latest, or none, and the other has a fixed tag. Each
// policy is then the default for its image.
func PolicyFollowsTag(before, after map[string]any) bool {
	was, is := before["imagePullPolicy"], after["imagePullPolicy"]
	oldImage, _ := before["image"].(string)
	newImage, _ := after["image"].(string)
	return was != is && was == pullPolicy(oldImage) && is == pullPolicy(newImage)
}

// KeepPolicy is the remedy where PolicyFollowsTag is true: with the policy that the Pods have, only
// the image changes.
func KeepPolicy(before map[string]any) string {
	policy, _ := before["imagePullPolicy"].(string)
	return "it follows the tag of the image; write imagePullPolicy: " + policy + ", so that only the image changes"
}
