package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"sigs.k8s.io/yaml"
)

// Where the chart and what is generated from it are, from the root of the sources.
const (
	chartDir     = "deploy/helm/meshcni"
	manifestsDir = "deploy/manifests"
)

// nowhere is the registry of the manifests in the sources: a name that never resolves (RFC 6761).
const nowhere = "registry.invalid"

// deploy writes the chart's package and the plain manifests, which install this version's image: from the release's registry if it
// has one, by its digest if it was made before.
func (r *release) deploy() error {
	c, err := loader.LoadDir(filepath.Join(r.root, filepath.FromSlash(chartDir)))
	if err != nil {
		return fmt.Errorf("read the chart: %w", err)
	}
	if err := r.manifests(c.Metadata.AppVersion); err != nil {
		return fmt.Errorf("manifests: %w", err)
	}
	c.Metadata.Version, c.Metadata.AppVersion = r.number(), r.version
	if r.registry != "" {
		// The chart's templates read these.
		c.Metadata.Annotations = map[string]string{"meshcni.io/image-registry": r.registry}
		if r.index != "" {
			c.Metadata.Annotations["meshcni.io/image-digest"] = r.index
		}
	}
	return r.packChart(c)
}

// packChart does as `helm package` does with --version and --app-version, but for the time of day.
func (r *release) packChart(c *chart.Chart) error {
	err := c.Validate()
	if err != nil {
		return fmt.Errorf("package the chart: %w", err)
	}
	var list []file
	for _, f := range c.Raw {
		data := f.Data
		if f.Name == "Chart.yaml" {
			if data, err = yaml.Marshal(c.Metadata); err != nil {
				return err
			}
		}
		list = append(list, file{name: c.Name() + "/" + f.Name, mode: 0o644, data: data})
	}
	to := c.Name() + "-" + r.number() + ".tgz"
	if err := archive(filepath.Join(r.out, to), list, r.time, gzipped(8)); err != nil {
		return err
	}
	return r.tell(to, "")
}

// manifests packs the manifests, which name the version that the chart has in the sources: as released, this one's.
func (r *release) manifests(chartVersion string) error {
	tree, err := directory(filepath.Join(r.root, filepath.FromSlash(manifestsDir)))
	if err != nil {
		return err
	}
	here := nowhere + "/" + repository + ":" + chartVersion
	advice := regexp.MustCompile(`(?m)^# ` + regexp.QuoteMeta(nowhere) + ` .*\n`)
	named := regexp.MustCompile(`(app\.kubernetes\.io/version: "?)` + regexp.QuoteMeta(chartVersion) + `\b`)
	for i := range tree {
		f := &tree[i]
		text, err := os.ReadFile(f.path)
		if err != nil {
			return err
		}
		if !named.Match(text) || !bytes.Contains(text, []byte(here)) {
			return fmt.Errorf("%s does not name image %s and version %s, as the chart does: is it made from it?", f.name, here, chartVersion)
		}
		text = bytes.ReplaceAll(text, []byte(here), []byte(r.pulled()))
		if r.registry != "" {
			text = advice.ReplaceAll(text, nil)
		}
		f.path, f.data = "", named.ReplaceAll(text, []byte("${1}"+r.version))
	}
	return r.targz(r.name("manifests"), tree)
}

// pulled is the image as the manifests name it: by its digest too if that is known, except for one that is imported, which a node
// knows by its tag.
func (r *release) pulled() string {
	name := cmp.Or(r.registry, nowhere) + "/" + repository + ":" + r.version
	if r.index != "" && r.registry != "" && r.registry != "localhost" {
		name += "@" + r.index
	}
	return name
}
