package defaults

func defaultVolume(v node) {
	if !hasSource(v) {
		v.set("emptyDir", map[string]any{})
		return
	}
	if hostPath, ok := v.child("hostPath"); ok {
		hostPath.absent("type", "")
	}
	for _, name := range []string{"secret", "configMap", "downwardAPI", "projected"} {
		if source, ok := v.child(name); ok {
			source.absent("defaultMode", int64(0o644))
		}
	}
	if downward, ok := v.child("downwardAPI"); ok {
		defaultItems(downward)
	}
	if projected, ok := v.child("projected"); ok {
		for source := range projected.elements("sources") {
			defaultProjection(source)
		}
	}
}

// hasSource reports whether the volume has any member besides its name. One
// that we do not know counts: it is a source newer than this table.
func hasSource(v node) bool {
	for name, value := range v.members {
		if name != "name" && value != nil {
			return true
		}
	}
	return false
}

func defaultProjection(source node) {
	if downward, ok := source.child("downwardAPI"); ok {
		defaultItems(downward)
	}
	if token, ok := source.child("serviceAccountToken"); ok {
		token.absent("expirationSeconds", int64(60*60))
	}
}

func defaultItems(downward node) {
	for item := range downward.elements("items") {
		defaultFieldRef(item)
	}
}
