package validation

// validateNulls refuses a null for a pull secret. The schema of the CRD refuses it too. But if
// the CRD of a cluster is older or edited, the API server would store the null, and no Pod
// would be injected. A null in any other list becomes an element that lacks its name.
func validateNulls(object map[string]any, path place) {
	list, _ := specOf(object)["imagePullSecrets"].([]any)
	for i, elem := range list {
		if elem == nil {
			path.Index(i).invalid("null", "must be an object with the name of a Secret; correct or remove it")
		}
	}
}
