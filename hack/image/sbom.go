package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// bill is the software bill of materials of a program or of an image, in the form of CycloneDX.
// Equal programs have equal bills: there is no time in them.
// notices is the file that hack/notices has written: it has the licence of each module.
func bill(of cdx.Component, notices string, programs ...string) ([]byte, error) {
	licences, err := licencesIn(notices)
	if err != nil {
		return nil, err
	}
	parts := map[string]cdx.Component{} // by package URL
	var unknown []string
	digest := sha256.New()
	for _, program := range programs {
		content, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		digest.Write(content)
		info, err := buildinfo.Read(bytes.NewReader(content))
		if err != nil {
			return nil, fmt.Errorf("reading what %s is built from: %w", program, err)
		}
		add := func(name, version, owner string) {
			url := "pkg:golang/" + name + "@" + version
			parts[url] = cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: url, Name: name, Version: version, PackageURL: url, Licenses: licences[owner]}
			if licences[owner] == nil {
				unknown = append(unknown, name)
			}
		}
		add("std", strings.TrimPrefix(info.GoVersion, "go"), "Go")
		for _, module := range info.Deps {
			if module.Replace != nil {
				module = module.Replace
			}
			if !strings.HasPrefix(module.Path, ".") { // our own module, by its directory
				add(module.Path, module.Version, module.Path+" "+module.Version)
			}
		}
	}
	if unknown != nil {
		return nil, fmt.Errorf("%s has no licence that is known of %s", notices, strings.Join(unknown, ", "))
	}
	of.BOMRef = of.PackageURL
	sum := digest.Sum(nil)
	urls := slices.Sorted(maps.Keys(parts))
	components := make([]cdx.Component, 0, len(urls))
	for _, url := range urls {
		components = append(components, parts[url])
	}
	bom := cdx.NewBOM()
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80 // version 8: a UUID of our own making
	bom.SerialNumber = fmt.Sprintf("urn:uuid:%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	bom.Metadata = &cdx.Metadata{Component: &of}
	bom.Components = &components
	bom.Dependencies = &[]cdx.Dependency{{Ref: of.BOMRef, Dependencies: &urls}}
	var out bytes.Buffer
	err = cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return out.Bytes(), err
}

// known are words of licences, and their SPDX identifiers. A file may have several.
var known = []struct {
	id    string
	words *regexp.Regexp
}{
	{"Apache-2.0", regexp.MustCompile(`Apache License,?\s+Version 2\.0`)},
	{"BSD-2-Clause", regexp.MustCompile(`Redistributions\s+in\s+binary\s+form\s+must`)},
	{"BSD-3-Clause", regexp.MustCompile(`Neither\s+the\s+names?\s+of`)}, // has the words of the other, too
	{"ISC", regexp.MustCompile(`Permission\s+to\s+use,\s+copy,\s+modify,\s+and(/or)?\s+distribute`)},
	{"MIT", regexp.MustCompile(`Permission\s+is\s+hereby\s+granted,\s+free\s+of\s+charge`)},
	{"MPL-2.0", regexp.MustCompile(`Mozilla Public License,?\s+[Vv]ersion 2\.0`)},
}

var (
	noticeRule = regexp.MustCompile(`(?m)^={80}$`)
	licenceOf  = regexp.MustCompile(`(?mi)^([^,:\n]+)(?:, [^:\n]*)?: (?:licen[cs]e|copying)[^:\n]*$`)
)

// licencesIn returns the licences by module and version, such as "k8s.io/api v0.37.1", and of "Go".
func licencesIn(notices string) (map[string]*cdx.Licenses, error) {
	text, err := os.ReadFile(notices)
	if err != nil {
		return nil, err
	}
	ids := map[string][]string{}
	parts := noticeRule.Split(string(text), -1) // a preface, then names and text in turn
	for i := 1; i+1 < len(parts); i += 2 {
		var found []string
		for _, k := range known {
			if k.words.MatchString(parts[i+1]) {
				found = append(found, k.id)
			}
		}
		if slices.Contains(found, "BSD-3-Clause") {
			found = slices.DeleteFunc(found, func(id string) bool { return id == "BSD-2-Clause" })
		}
		for _, owner := range licenceOf.FindAllStringSubmatch(parts[i], -1) {
			ids[owner[1]] = append(ids[owner[1]], found...)
		}
	}
	licences := map[string]*cdx.Licenses{}
	for owner, all := range ids {
		slices.Sort(all)
		switch all = slices.Compact(all); len(all) {
		case 0:
		case 1:
			licences[owner] = &cdx.Licenses{{License: &cdx.License{ID: all[0]}}}
		default:
			licences[owner] = &cdx.Licenses{{Expression: strings.Join(all, " AND ")}}
		}
	}
	return licences, nil
}
