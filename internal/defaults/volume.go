package defaults

func defaultVolume(v node) {
	if !hasSource(v) {
		v.set("emptyDir", map[string]any{})
		return
	}
	v.child("hostPath").absent("type", "")
	for _, name := range []string{"secret", "configMap", "downwardAPI", "projected"} {
		v.child(name).absent("defaultMode", int64(0o644))
	}
	defaultItems(v.child("downwardAPI"))
	for source := range v.child("projected").elements("sources") {
		defaultItems(source.child("downwardAPI"))
		source.child("serviceAccountToken").absent("expirationSeconds", int64(60*60))
	}
}

// hasSource reports whether the volume has any member apart from its name. An unknown member
// counts: it is a source newer than this table.
func hasSource(v node) bool {
	for name, value := range v.members {
		if name != "name" && value != nil {
			return true
		}
	}
	return false
}

func defaultItems(downward node) {
	for item := range downward.elements("items") {
		defaultFieldRef(item)
	}
}
