package validation

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateVolumeMounts(c *corev1.Container, volumes map[string]*corev1.Volume, path *field.Path) field.ErrorList {
	paths := sets.New[string]()
	var errs field.ErrorList
	for i := range c.VolumeMounts {
		m, at := &c.VolumeMounts[i], path.Index(i)
		errs = append(errs, validateVolumeReference(m.Name, volumes, at.Child("name"))...)
		switch {
		case m.MountPath == "":
			errs = append(errs, field.Required(at.Child("mountPath"), "say where the sidecar sees the volume"))
		case paths.Has(m.MountPath):
			errs = append(errs, field.Invalid(at.Child("mountPath"), m.MountPath, "must be unique in the container; change one of the mounts"))
		}
		paths.Insert(m.MountPath)
		errs = append(errs, validateSubPaths(m, at)...)
		errs = append(errs, validateMountOptions(m, c, at)...)
	}
	return errs
}

func validateSubPaths(m *corev1.VolumeMount, path *field.Path) field.ErrorList {
	errs := validateDescendingPath(m.SubPath, path.Child("subPath"))
	if m.SubPath != "" && m.SubPathExpr != "" {
		errs = append(errs, field.Invalid(path.Child("subPathExpr"), m.SubPathExpr, "may not stand beside subPath; remove one of them"))
	}
	return append(errs, validateDescendingPath(m.SubPathExpr, path.Child("subPathExpr"))...)
}

func validateMountOptions(m *corev1.VolumeMount, c *corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if mode := m.MountPropagation; mode != nil {
		at := path.Child("mountPropagation")
		errs = append(errs, validateValue(*mode, at, corev1.MountPropagationNone, corev1.MountPropagationHostToContainer, corev1.MountPropagationBidirectional)...)
		if *mode == corev1.MountPropagationBidirectional && !isPrivileged(c) {
			errs = append(errs, field.Forbidden(at, "Bidirectional is for privileged containers; set securityContext.privileged or use HostToContainer"))
		}
	}
	if mode := m.RecursiveReadOnly; mode != nil {
		at := path.Child("recursiveReadOnly")
		errs = append(errs, validateValue(*mode, at, corev1.RecursiveReadOnlyDisabled, corev1.RecursiveReadOnlyIfPossible, corev1.RecursiveReadOnlyEnabled)...)
		propagates := m.MountPropagation != nil && *m.MountPropagation != corev1.MountPropagationNone
		if *mode != corev1.RecursiveReadOnlyDisabled && (!m.ReadOnly || propagates) {
			errs = append(errs, field.Forbidden(at, "needs readOnly true and no mountPropagation; set both or remove it"))
		}
	}
	return errs
}

func validateVolumeDevices(c *corev1.Container, volumes map[string]*corev1.Volume, path *field.Path) field.ErrorList {
	names, paths := sets.New[string](), sets.New[string]()
	var errs field.ErrorList
	for i := range c.VolumeDevices {
		d, at := &c.VolumeDevices[i], path.Index(i)
		errs = append(errs, validateVolumeReference(d.Name, volumes, at.Child("name"))...)
		if v := volumes[d.Name]; v != nil && v.PersistentVolumeClaim == nil && v.Ephemeral == nil && hasSource(&v.VolumeSource) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "is no block device; only volumes of persistentVolumeClaim or ephemeral can be, mount this one with volumeMounts"))
		}
		if names.Has(d.Name) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "must be unique in the container; remove one of the devices"))
		}
		if slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == d.Name }) {
			errs = append(errs, field.Invalid(at.Child("name"), d.Name, "is mounted in volumeMounts too; remove one of them"))
		}
		errs = append(errs, validateDevicePath(d.DevicePath, c.VolumeMounts, paths, at.Child("devicePath"))...)
		names.Insert(d.Name)
	}
	return errs
}

// validateDevicePath checks where a device appears, and adds it to paths.
func validateDevicePath(path string, mounts []corev1.VolumeMount, paths sets.Set[string], at *field.Path) field.ErrorList {
	if path == "" {
		return field.ErrorList{field.Required(at, "say where the sidecar sees the device")}
	}
	errs := validateNoBacksteps(path, at)
	if paths.Has(path) {
		errs = append(errs, field.Invalid(at, path, "must be unique in the container; change one of the devices"))
	}
	if slices.ContainsFunc(mounts, func(m corev1.VolumeMount) bool { return m.MountPath == path }) {
		errs = append(errs, field.Invalid(at, path, "is the path of a mount too; change one of them"))
	}
	paths.Insert(path)
	return errs
}

func validateVolumeReference(name string, volumes map[string]*corev1.Volume, path *field.Path) field.ErrorList {
	if volumes[name] != nil {
		return nil
	}
	return field.ErrorList{field.Invalid(path, name, "is no volume of this SidecarSet; declare it in spec.volumes")}
}

func isPrivileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
}
