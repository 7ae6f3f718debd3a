package integration

// volume makes one of the common kinds of volume.
func (g generator) volume(name string) object {
	v := object{"name": g.of(list{name}, list{"", "V", "va", "a.b"})}
	kinds := []func() (string, any){
		func() (string, any) {
			return "emptyDir", g.of(list{object{}, object{"medium": "Memory"}, object{"sizeLimit": "1Gi"}}, list{object{"sizeLimit": "-1"}})
		},
		func() (string, any) {
			return "hostPath", object{"path": g.of(list{"/x", "x"}, list{"", "/a/../b"}), "type": g.of(list{"", "Directory", "Socket"}, list{"Disk"})}
		},
		func() (string, any) { return "secret", g.files("secretName") },
		func() (string, any) { return "configMap", g.files("name") },
		func() (string, any) {
			return "downwardAPI", object{"items": list{g.downwardFile("f")}, "defaultMode": g.of(list{420}, list{512, -1})}
		},
		func() (string, any) {
			return "persistentVolumeClaim", object{"claimName": g.of(list{"c"}, list{""}), "readOnly": g.maybe(2)}
		},
		func() (string, any) { return "projected", g.projected() },
		func() (string, any) {
			return "csi", object{"driver": g.of(list{"csi.example.com", "Csi"}, list{"", "a_b", "-a"}), "nodePublishSecretRef": g.of(list{object{"name": "s"}, nil}, list{object{"name": "S"}, object{}})}
		},
		func() (string, any) {
			return "image", object{"reference": g.of(list{"example.com/x"}, list{""}), "pullPolicy": g.of(list{"Always", ""}, list{"x"})}
		},
		func() (string, any) {
			return "nfs", object{"server": g.of(list{"s"}, list{""}), "path": g.of(list{"/x"}, list{"", "x"})}
		},
		func() (string, any) { return "ephemeral", g.ephemeral() },
		func() (string, any) { return g.network() },
	}
	kind, source := kinds[g.IntN(len(kinds))]()
	v[kind] = source
	if g.maybe(60) {
		kind, source = kinds[g.IntN(len(kinds))]()
		v[kind] = source
	}
	return v
}

func (g generator) files(nameMember string) object {
	v := object{nameMember: g.of(list{"s"}, list{""})}
	g.set(v, 4, "defaultMode", list{0, 420, 511}, list{512, -1})
	if g.maybe(3) {
		v["items"] = list{g.item("f")}
	}
	return v
}

func (g generator) item(path string) object {
	item := object{"key": g.of(list{"k"}, list{""}), "path": g.of(list{path, "a/" + path}, list{"", "/a", "../a", "..a", "a/.."})}
	g.set(item, 4, "mode", list{256}, list{512, -1})
	return item
}

func (g generator) downwardFile(path string) object {
	f := g.of(list{
		g.fieldRef("metadata.name", "metadata.labels", "metadata.annotations['a']"),
		object{"resourceFieldRef": object{"containerName": g.of(list{"app"}, list{""}), "resource": g.of(list{"limits.cpu"}, list{"", "x"}), "divisor": g.of(list{"1", "1m", "0"}, list{"1Ki"})}},
	}, list{object{}, g.fieldRef("status.podIP"), g.fieldRef("")}).(object)
	f["path"] = g.of(list{path}, list{"", "/a", ".."})
	g.set(f, 4, "mode", list{256}, list{512})
	return f
}

func (g generator) projected() object {
	v := object{}
	g.set(v, 4, "defaultMode", list{420}, list{512})
	for range 1 + g.IntN(2) {
		v["sources"] = add(v["sources"], g.of(list{
			object{"secret": object{"name": g.of(list{"s"}, list{""}), "items": list{g.item("s")}}},
			object{"configMap": object{"name": g.of(list{"s"}, list{""}), "items": list{g.item("c")}}},
			object{"downwardAPI": object{"items": list{g.downwardFile("d")}}},
			object{"serviceAccountToken": object{"path": g.of(list{"t"}, list{"", "../t", "/t"}), "expirationSeconds": g.of(list{600, 3600}, list{599, 1 << 33})}},
			object{"clusterTrustBundle": object{"path": g.of(list{"b"}, list{"", "/b"}), "name": g.of(list{"bundle"}, list{"", "B_"})}},
			object{"clusterTrustBundle": object{"path": "p", "signerName": g.of(list{"example.com/s"}, list{"", "nodomain", "a b/c"})}},
			object{"podCertificate": object{"signerName": g.of(list{"example.com/s"}, list{"", "x"}), "keyType": g.of(list{"ED25519"}, list{"", "x"}), "credentialBundlePath": g.of(list{"cert"}, list{"", "/x"})}},
		}, list{object{}, object{"secret": object{"name": "s"}, "configMap": object{"name": "c"}}}))
	}
	return v
}

func (g generator) ephemeral() object {
	spec := object{
		"accessModes": g.of(list{list{"ReadWriteOnce"}, list{"ReadWriteMany", "ReadOnlyMany"}, list{"ReadWriteOncePod"}}, list{list{}, list{"x"}, list{"ReadWriteOncePod", "ReadWriteOnce"}}),
		"resources":   object{"requests": g.of(list{object{"storage": "1Gi"}}, list{object{}, object{"storage": 0}, object{"storage": "-1"}})},
	}
	g.set(spec, 4, "storageClassName", list{"fast", ""}, list{"F_"})
	g.set(spec, 4, "volumeMode", list{"Block", "Filesystem"}, list{"x"})
	return object{"volumeClaimTemplate": object{"metadata": object{"labels": object{"a": g.of(list{"b"}, list{"a b"})}}, "spec": spec}}
}

// network is a kind that needs little more than an address.
func (g generator) network() (string, any) {
	kinds := []func() (string, any){
		func() (string, any) {
			return "iscsi", object{"targetPortal": g.of(list{"1.2.3.4"}, list{""}), "iqn": g.of(list{"iqn.2001-04.com.example:x"}, list{"", "x"}), "lun": g.of(list{0, 1}, list{-1, 256})}
		},
		func() (string, any) { return "cephfs", object{"monitors": g.of(list{list{"a"}}, list{list{}})} },
		func() (string, any) {
			return "rbd", object{"monitors": g.of(list{list{"a"}}, list{list{}}), "image": g.of(list{"i"}, list{""})}
		},
		func() (string, any) {
			return "fc", object{"targetWWNs": g.of(list{list{"a"}}, list{list{}}), "lun": g.of(list{1}, list{-1, nil})}
		},
		func() (string, any) {
			return "azureDisk", object{"diskName": "d", "diskURI": g.of(list{"https://x/blob"}, list{"", "x"})}
		},
		func() (string, any) { return "glusterfs", object{"endpoints": g.of(list{"e"}, list{""}), "path": "p"} },
		func() (string, any) { return "flexVolume", object{"driver": g.of(list{"a/b"}, list{""})} },
	}
	return kinds[g.IntN(len(kinds))]()
}
