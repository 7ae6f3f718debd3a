package revision

// This table is frozen at the declaration order of Kubernetes 1.37.1. Changing
// what is here changes the hash of stored SidecarSets: a member that a later
// Kubernetes adds is hashed as an unknown member (docs/design/0002) and must
// stay one. TestTableAgreesWithLibrary compares it with the library in go.mod.
var sidecarContainer = object(
	required("name", text),
	optional("image", text),
	optional("command args", list(text)),
	optional("workingDir", text),
	optional("ports", list(containerPort)),
	optional("envFrom", list(envFromSource)),
	optional("env", list(envVar)),
	required("resources", resourceRequirements),
	optional("resizePolicy", list(object(required("resourceName restartPolicy", text)))),
	pointer("restartPolicy", text),
	optional("restartPolicyRules", list(restartRule)),
	optional("volumeMounts", list(volumeMount)),
	optional("volumeDevices", list(object(required("name devicePath", text)))),
	pointer("livenessProbe readinessProbe startupProbe", probe),
	pointer("lifecycle", lifecycle),
	optional("terminationMessagePath terminationMessagePolicy imagePullPolicy", text),
	pointer("securityContext", securityContext),
	optional("stdin stdinOnce tty", boolean),

	// What a SidecarSet adds to a container.
	optional("podInjectPolicy", text),
	required("upgradeStrategy", object(optional("upgradeType hotUpgradeEmptyImage", text))),
	required("shareVolumePolicy", sharePolicy),
	pointer("shareVolumeDevicePolicy", sharePolicy),
	optional("transferEnv", list(transferEnvVar)),
	pointer("resourcesPolicy", resourcesPolicy),
)

var containerPort = object(
	optional("name", text),
	optional("hostPort", integer32),
	required("containerPort", integer32),
	optional("protocol hostIP", text),
)

var envFromSource = object(optional("prefix", text), pointer("configMapRef secretRef", optionalReference))

var optionalReference = object(optional("name", text), pointer("optional", boolean))

var envVar = object(
	required("name", text),
	optional("value", text),
	pointer("valueFrom", object(
		pointer("fieldRef", fieldSelector),
		pointer("resourceFieldRef", resourceFieldSelector),
		pointer("configMapKeyRef secretKeyRef", keySelector),
		pointer("fileKeyRef", object(required("volumeName path key", text), pointer("optional", boolean))),
	)),
)

var fieldSelector = object(optional("apiVersion", text), required("fieldPath", text))

var resourceFieldSelector = object(optional("containerName", text), required("resource", text), required("divisor", quantity))

var keySelector = object(optional("name", text), required("key", text), pointer("optional", boolean))

var resourceRequirements = object(
	optional("limits requests", mapOf(quantity)),
	optional("claims", list(object(required("name", text), optional("request", text)))),
)

var restartRule = object(
	optional("action", text),
	pointer("exitCodes", object(optional("operator", text), optional("values", list(integer32)))),
)

var volumeMount = object(
	required("name", text),
	optional("readOnly", boolean),
	pointer("recursiveReadOnly", text),
	required("mountPath", text),
	optional("subPath", text),
	pointer("mountPropagation", text),
	optional("subPathExpr", text),
	optional("bindMountOptions", list(text)),
)

var probe = object(
	pointer("exec", execAction),
	pointer("httpGet", httpGetAction),
	pointer("tcpSocket", tcpSocketAction),
	pointer("grpc", object(required("port", integer32), nullable("service", text), pointer("mode", text))),
	optional("initialDelaySeconds timeoutSeconds periodSeconds successThreshold failureThreshold", integer32),
	pointer("terminationGracePeriodSeconds", integer64),
)

var execAction = object(optional("command", list(text)))

var httpGetAction = object(
	optional("path", text),
	required("port", intOrString),
	optional("host scheme", text),
	optional("httpHeaders", list(object(required("name value", text)))),
	pointer("protocol", text),
)

var tcpSocketAction = object(required("port", intOrString), optional("host", text))

var lifecycle = object(pointer("postStart preStop", lifecycleHandler), pointer("stopSignal", text))

var lifecycleHandler = object(
	pointer("exec", execAction),
	pointer("httpGet", httpGetAction),
	pointer("tcpSocket", tcpSocketAction),
	pointer("sleep", object(required("seconds", integer64))),
)

var securityContext = object(
	pointer("capabilities", object(optional("add drop", list(text)))),
	pointer("privileged", boolean),
	pointer("seLinuxOptions", object(optional("user role type level", text))),
	pointer("windowsOptions", object(
		pointer("gmsaCredentialSpecName gmsaCredentialSpec runAsUserName", text),
		pointer("hostProcess", boolean),
	)),
	pointer("runAsUser runAsGroup", integer64),
	pointer("runAsNonRoot readOnlyRootFilesystem allowPrivilegeEscalation", boolean),
	pointer("procMount", text),
	pointer("seccompProfile appArmorProfile", profile),
)

var profile = object(required("type", text), pointer("localhostProfile", text))

var sharePolicy = object(optional("type", text))

var transferEnvVar = object(
	optional("sourceContainerName", text),
	pointer("sourceContainerNameFrom", object(pointer("fieldRef", fieldSelector))),
	optional("envName", text),
	optional("envNames", list(text)),
)

var resourcesPolicy = object(
	required("targetContainersMode", text),
	optional("targetContainersNameRegex", text),
	required("resourcesExpr", object(pointer("limits requests", resourceExpressions))),
)

var resourceExpressions = object(optional("cpu memory", text))
