package dist

import (
	"archive/tar"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/sigstore/sigstore/pkg/signature"
	"helm.sh/helm/v3/pkg/registry"

	"github.com/meshcni/meshcni/release/internal/cosign"
	"github.com/meshcni/meshcni/release/internal/files"
	"github.com/meshcni/meshcni/release/internal/image"
)

// chartRepository is where the charts are in the registry, in one place with the image: one permission is enough for both.
const chartRepository = "meshcni/charts/meshcni"

// Registry is where a release is published.
type Registry struct {
	// Name must be the one that the release was made for. Empty: whichever that is.
	Name string
	// PlainHTTP is for a registry without TLS.
	PlainHTTP bool
}

// published is a release and its places in its registry.
type published struct {
	record
	image, chart name.Tag
	index        v1.ImageIndex
	digest       v1.Hash // the index's
	archive      string  // the chart's
	plainHTTP    bool
	options      []remote.Option
	log          io.Writer
}

// Publish puts the images and the chart of the release in dir into the registry that it was made for, and signs them. What is
// there already stays; a version that is there with another content is an error, and nothing is changed.
func (r Registry) Publish(ctx context.Context, dir string, key signature.SignerVerifier, log io.Writer) error {
	return r.with(ctx, dir, log, func(p *published) error {
		images, chart, err := p.found()
		if err != nil {
			return err
		}
		if !images {
			if err := remote.WriteIndex(p.image, p.index, p.options...); err != nil {
				return fmt.Errorf("push %s: %w", p.image, err)
			}
		}
		if !chart {
			if err := p.pushChart(); err != nil {
				return fmt.Errorf("push chart %s: %w", p.chart, err)
			}
		}
		return p.each(func(at name.Digest) error { return cosign.Sign(at, key, p.options...) }, "signed")
	})
}

// Verify checks that the registry has the release in dir, and that it is signed with the key.
func (r Registry) Verify(ctx context.Context, dir string, key signature.Verifier, log io.Writer) error {
	return r.with(ctx, dir, log, func(p *published) error {
		images, chart, err := p.found()
		if err == nil && !(images && chart) {
			err = fmt.Errorf("%s or chart %s is missing", p.image, p.chart)
		}
		if err != nil {
			return err
		}
		return p.each(func(at name.Digest) error { return cosign.Verify(at, key, p.options...) }, "has a good signature")
	})
}

// with opens the release in dir, whose files must be whole.
func (r Registry) with(ctx context.Context, dir string, log io.Writer, do func(*published) error) (err error) {
	if _, err := Check(dir); err != nil {
		return err
	}
	p := &published{plainHTTP: r.PlainHTTP, log: log, options: []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}}
	if p.record, err = readRecord(dir); err != nil {
		return err
	}
	switch p.Registry {
	case "":
		return fmt.Errorf("%s was made for no registry, so its chart names none: make it with --registry", dir)
	case cmp.Or(r.Name, p.Registry):
	default:
		return fmt.Errorf("%s was made for registry %s, which its chart names, not for %s", dir, p.Registry, r.Name)
	}
	var insecure []name.Option
	if r.PlainHTTP {
		insecure = append(insecure, name.Insecure)
	}
	named, err := image.Name(p.Stamp)
	if err != nil {
		return err
	}
	if p.image, err = name.NewTag(named.String(), insecure...); err != nil {
		return err
	}
	if p.chart, err = name.NewTag(p.Registry+"/"+chartRepository+":"+p.Number(), insecure...); err != nil {
		return err
	}
	p.archive = filepath.Join(dir, "meshcni-"+p.Number()+".tgz")

	work, err := os.MkdirTemp("", "meshcni-layout-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(work)) }()
	archive := filepath.Join(dir, "meshcni_"+p.Number()+"_image_oci.tar")
	if p.index, err = openLayout(archive, work); err != nil {
		return fmt.Errorf("%s: %w", archive, err)
	}
	if p.digest, err = p.index.Digest(); err != nil {
		return err
	}
	return do(p)
}

// openLayout unpacks an OCI layout and returns its only index.
func openLayout(archive, to string) (v1.ImageIndex, error) {
	tree, err := untar(archive)
	if err != nil {
		return nil, err
	}
	if err := files.WriteDir(to, tree); err != nil {
		return nil, err
	}
	outer, err := layout.ImageIndexFromPath(to)
	if err != nil {
		return nil, err
	}
	m, err := outer.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(m.Manifests) != 1 {
		return nil, fmt.Errorf("%d entries, not one", len(m.Manifests))
	}
	return outer.ImageIndex(m.Manifests[0].Digest)
}

// untar returns the regular files of an archive.
func untar(archive string) (tree []files.File, err error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return tree, nil
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data, err := io.ReadAll(tr)
		if err != nil {
			return nil, err
		}
		tree = append(tree, files.File{Name: h.Name, Mode: 0o644, Data: data})
	}
}

// found reports what of the release is in the registry. What is there under its names must be it.
func (p *published) found() (images, chart bool, err error) {
	d, err := p.get(p.image)
	if err == nil && d != nil && d.Digest != p.digest {
		err = fmt.Errorf("%s is another image, %s, not %s", p.image, d.Digest, p.digest)
	}
	c, errChart := p.getChart()
	return d != nil, c != nil, errors.Join(err, errChart)
}

// get returns the manifest with that name; nil if there is none.
func (p *published) get(tag name.Tag) (*remote.Descriptor, error) {
	d, err := remote.Get(tag, p.options...)
	var answer *transport.Error
	if errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look for %s: %w", tag, err)
	}
	return d, nil
}

// getChart returns the chart's manifest, which must be of this release's chart; nil if there is none.
func (p *published) getChart() (*remote.Descriptor, error) {
	d, err := p.get(p.chart)
	if d == nil || err != nil {
		return nil, err
	}
	var m v1.Manifest
	if err := json.Unmarshal(d.Manifest, &m); err != nil {
		return nil, fmt.Errorf("chart %s: %w", p.chart, err)
	}
	want, err := files.Digest(p.archive)
	if err != nil {
		return nil, err
	}
	if m.Config.MediaType != registry.ConfigMediaType || len(m.Layers) != 1 || m.Layers[0].MediaType != registry.ChartLayerMediaType || m.Layers[0].Digest.Hex != want {
		return nil, fmt.Errorf("%s is not the chart of this release, whose SHA-256 is %s", p.chart, want)
	}
	return d, nil
}

// pushChart does as `helm push` does, but for the time of day.
func (p *published) pushChart() error {
	text, err := os.ReadFile(p.archive)
	if err != nil {
		return err
	}
	options := []registry.ClientOption{registry.ClientOptWriter(io.Discard)}
	if p.plainHTTP {
		options = append(options, registry.ClientOptPlainHTTP())
	}
	client, err := registry.NewClient(options...)
	if err != nil {
		return err
	}
	_, err = client.Push(text, p.chart.String(), registry.PushOptCreationTime(p.Time().Format(time.RFC3339)))
	return err
}

// each does something with the index, the images in it, and the chart, and tells of each. All that goes wrong is reported.
func (p *published) each(do func(name.Digest) error, done string) error {
	m, err := p.index.IndexManifest()
	if err != nil {
		return err
	}
	// What the registry answers now is what is signed, so it is looked at again.
	chart, err := p.getChart()
	if err == nil && chart == nil {
		err = fmt.Errorf("chart %s is missing", p.chart)
	}
	if err != nil {
		return err
	}
	var failed []error
	one := func(what string, repository name.Repository, digest v1.Hash) {
		err := do(repository.Digest(digest.String()))
		if err != nil {
			failed = append(failed, err)
			return
		}
		fmt.Fprintf(p.log, "%s  %s  %s\n", what, digest, done)
	}
	one(p.image.String(), p.image.Repository, p.digest)
	for _, d := range m.Manifests {
		one("  "+d.Platform.String(), p.image.Repository, d.Digest)
	}
	one("oci://"+p.chart.String(), p.chart.Repository, chart.Digest)
	return errors.Join(failed...)
}
