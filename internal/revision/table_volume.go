package revision

// These tables say what a ControllerRevision records of volumes, pull secrets
// and metadata. They are frozen like that of containers: changing them changes
// the names of ControllerRevisions, though no hash. TestTableAgreesWithLibrary
// compares them with the library in go.mod.
var (
	objectName = object(optional("name", text))

	podMetadata = object(optional("annotations", mapOf(text)), optional("patchPolicy", text))

	volume = object(
		required("name", text),
		pointer("hostPath", object(required("path", text), pointer("type", text))),
		pointer("emptyDir", object(optional("medium", text), pointer("sizeLimit", quantity), pointer("mode", integer32))),
		pointer("gcePersistentDisk", object(
			required("pdName", text),
			optional("fsType", text),
			optional("partition", integer32),
			optional("readOnly", boolean),
		)),
		pointer("awsElasticBlockStore", object(
			required("volumeID", text),
			optional("fsType", text),
			optional("partition", integer32),
			optional("readOnly", boolean),
		)),
		pointer("gitRepo", object(required("repository", text), optional("revision directory", text))),
		pointer("secret", object(
			optional("secretName", text),
			optional("items", list(keyToPath)),
			pointer("defaultMode", integer32),
			pointer("optional", boolean),
			pointer("defaultUser", integer64),
		)),
		pointer("nfs", object(required("server path", text), optional("readOnly", boolean))),
		pointer("iscsi", object(
			required("targetPortal iqn", text),
			required("lun", integer32),
			optional("iscsiInterface fsType", text),
			optional("readOnly", boolean),
			optional("portals", list(text)),
			optional("chapAuthDiscovery chapAuthSession", boolean),
			pointer("secretRef", objectName),
			pointer("initiatorName", text),
		)),
		pointer("glusterfs", object(required("endpoints path", text), optional("readOnly", boolean))),
		pointer("persistentVolumeClaim", object(required("claimName", text), optional("readOnly", boolean))),
		pointer("rbd", object(
			required("monitors", list(text)),
			required("image", text),
			optional("fsType pool user keyring", text),
			pointer("secretRef", objectName),
			optional("readOnly", boolean),
		)),
		pointer("flexVolume", object(
			required("driver", text),
			optional("fsType", text),
			pointer("secretRef", objectName),
			optional("readOnly", boolean),
			optional("options", mapOf(text)),
		)),
		pointer("cinder", object(
			required("volumeID", text),
			optional("fsType", text),
			optional("readOnly", boolean),
			pointer("secretRef", objectName),
		)),
		pointer("cephfs", object(
			required("monitors", list(text)),
			optional("path user secretFile", text),
			pointer("secretRef", objectName),
			optional("readOnly", boolean),
		)),
		pointer("flocker", object(optional("datasetName datasetUUID", text))),
		pointer("downwardAPI", object(
			optional("items", list(downwardFile)),
			pointer("defaultMode", integer32),
			pointer("defaultUser", integer64),
		)),
		pointer("fc", object(
			optional("targetWWNs", list(text)),
			pointer("lun", integer32),
			optional("fsType", text),
			optional("readOnly", boolean),
			optional("wwids", list(text)),
		)),
		pointer("azureFile", object(required("secretName shareName", text), optional("readOnly", boolean))),
		pointer("configMap", object(
			optional("name", text),
			optional("items", list(keyToPath)),
			pointer("defaultMode", integer32),
			pointer("optional", boolean),
			pointer("defaultUser", integer64),
		)),
		pointer("vsphereVolume", object(
			required("volumePath", text),
			optional("fsType storagePolicyName storagePolicyID", text),
		)),
		pointer("quobyte", object(
			required("registry volume", text),
			optional("readOnly", boolean),
			optional("user group tenant", text),
		)),
		pointer("azureDisk", object(
			required("diskName diskURI", text),
			pointer("cachingMode fsType", text),
			pointer("readOnly", boolean),
			pointer("kind", text),
		)),
		pointer("photonPersistentDisk", object(required("pdID", text), optional("fsType", text))),
		pointer("projected", object(
			required("sources", list(projection)),
			pointer("defaultMode", integer32),
			pointer("defaultUser", integer64),
		)),
		pointer("portworxVolume", object(required("volumeID", text), optional("fsType", text), optional("readOnly", boolean))),
		pointer("scaleIO", object(
			required("gateway system", text),
			nullable("secretRef", objectName),
			optional("sslEnabled", boolean),
			optional("protectionDomain storagePool storageMode volumeName fsType", text),
			optional("readOnly", boolean),
		)),
		pointer("storageos", object(
			optional("volumeName volumeNamespace fsType", text),
			optional("readOnly", boolean),
			pointer("secretRef", objectName),
		)),
		pointer("csi", object(
			required("driver", text),
			pointer("readOnly", boolean),
			pointer("fsType", text),
			optional("volumeAttributes", mapOf(text)),
			pointer("nodePublishSecretRef", objectName),
		)),
		pointer("ephemeral", object(
			pointer("volumeClaimTemplate", object(required("metadata", templateMetadata), required("spec", claim))),
		)),
		pointer("image", object(optional("reference pullPolicy", text))),
	)
)

var keyToPath = object(required("key path", text), pointer("mode", integer32), pointer("user", integer64))

var downwardFile = object(
	required("path", text),
	pointer("fieldRef", fieldSelector),
	pointer("resourceFieldRef", resourceFieldSelector),
	pointer("mode", integer32),
	pointer("user", integer64),
)

var projection = object(
	pointer("secret", projectedReference),
	pointer("downwardAPI", object(optional("items", list(downwardFile)))),
	pointer("configMap", projectedReference),
	pointer("serviceAccountToken", object(
		optional("audience", text),
		pointer("expirationSeconds", integer64),
		required("path", text),
		pointer("user", integer64),
	)),
	pointer("clusterTrustBundle", object(
		pointer("name signerName", text),
		pointer("labelSelector", labelSelector),
		pointer("optional", boolean),
		required("path", text),
		pointer("user", integer64),
	)),
	pointer("podCertificate", object(
		optional("signerName keyType", text),
		pointer("maxExpirationSeconds", integer32),
		optional("credentialBundlePath keyPath certificateChainPath", text),
		optional("userAnnotations", mapOf(text)),
		pointer("user", integer64),
	)),
)

var projectedReference = object(optional("name", text), optional("items", list(keyToPath)), pointer("optional", boolean))

var labelSelector = object(
	optional("matchLabels", mapOf(text)),
	optional("matchExpressions", list(object(required("key operator", text), optional("values", list(text))))),
)

// templateMetadata is that of a claim template. Only its labels and annotations may be set;
// the others are here because they may be zero. creationTimestamp is written as null, as by
// OpenKruise's libraries (Kubernetes 1.32); libraries since 1.34 leave it out.
var templateMetadata = object(
	optional("name generateName namespace selfLink uid resourceVersion", text),
	optional("generation", integer64),
	nullable("creationTimestamp", text),
	pointer("deletionTimestamp", text),
	pointer("deletionGracePeriodSeconds", integer64),
	optional("labels annotations", mapOf(text)),
	optional("ownerReferences", list(object())),
	optional("finalizers", list(text)),
	optional("managedFields", list(object())),
)

var claim = object(
	optional("accessModes", list(text)),
	pointer("selector", labelSelector),
	required("resources", object(optional("limits requests", mapOf(quantity)))),
	optional("volumeName", text),
	pointer("storageClassName volumeMode", text),
	pointer("dataSource", object(nullable("apiGroup", text), required("kind name", text))),
	pointer("dataSourceRef", object(nullable("apiGroup", text), required("kind name", text), pointer("namespace", text))),
	pointer("volumeAttributesClassName", text),
)
