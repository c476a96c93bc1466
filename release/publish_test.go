package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	imageRepository = "team/meshcni/meshcni"
	chartRepository = "team/meshcni/charts/meshcni"
)

// keyPair writes the two halves of a key of a test.
func keyPair(t *testing.T) (private, public string, key *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	public = writeKey(t, "cosign.pub", publicPEM(t, key))
	return writeKey(t, "cosign.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})), public, key
}

func publicPEM(t *testing.T, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	require.NoError(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func writeKey(t *testing.T, name string, text []byte) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	return file
}

// release runs the program's command line.
func release(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var said bytes.Buffer
	c := command()
	c.SetArgs(args)
	c.SetOut(&said)
	err := c.ExecuteContext(t.Context())
	return said.String(), err
}

func publishImages(t *testing.T, key string) string {
	t.Helper()
	said, err := release(t, "publish", outDir(t), "--key", key, "--plain-http", "--registry", testRegistry)
	require.NoError(t, err)
	return said
}

// get asks the registry with no library.
func get(repository, what, reference string) (text []byte, digest string, err error) {
	host, _, _ := strings.Cut(testRegistry, "/")
	request, err := http.NewRequest(http.MethodGet, "http://"+host+"/v2/"+repository+"/"+what+"/"+reference, nil)
	if err != nil {
		return nil, "", err
	}
	request.Header.Add("Accept", "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json")
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, "", err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK {
		err = errors.Join(err, fmt.Errorf("%s/%s: %s", repository, reference, answer.Status))
	}
	return text, fmt.Sprintf("sha256:%x", sha256.Sum256(text)), err
}

// signedBySpec checks a signature as the format's specification has it, without the libraries that made it.
func signedBySpec(repository, digest string, key *ecdsa.PublicKey) error {
	text, _, err := get(repository, "manifests", strings.Replace(digest, ":", "-", 1)+".sig")
	if err != nil {
		return err
	}
	var manifest struct {
		MediaType string
		Layers    []struct {
			MediaType, Digest string
			Size              int
			Annotations       map[string]string
		}
	}
	if err := json.Unmarshal(text, &manifest); err != nil {
		return err
	}
	if manifest.MediaType != "application/vnd.oci.image.manifest.v1+json" {
		return errors.New(manifest.MediaType)
	}
	for _, l := range manifest.Layers {
		payload, got, err := get(repository, "blobs", l.Digest)
		if err != nil {
			return err
		}
		if got != l.Digest || len(payload) != l.Size || l.MediaType != "application/vnd.dev.cosign.simplesigning.v1+json" {
			return fmt.Errorf("%+v, but %s", l, got)
		}
		signature, err := base64.StdEncoding.DecodeString(l.Annotations["dev.cosignproject.cosign/signature"])
		if err != nil {
			return err
		}
		hash := sha256.Sum256(payload)
		if !ecdsa.VerifyASN1(key, hash[:], signature) {
			continue
		}
		var says struct {
			Critical struct {
				Type     string
				Image    map[string]string
				Identity map[string]string
			}
		}
		if err := json.Unmarshal(payload, &says); err != nil {
			return err
		}
		if says.Critical.Type == "cosign container image signature" && says.Critical.Image["docker-manifest-digest"] == digest &&
			strings.HasSuffix(says.Critical.Identity["docker-reference"], "/"+repository) {
			return nil
		}
	}
	return errors.New("no good signature")
}

// helm runs the one that .ci/tool installs.
func helm(t *testing.T, args ...string) string {
	t.Helper()
	program, err := exec.LookPath("helm")
	if err != nil {
		program = filepath.Join(root(t), ".cache", "bin", "helm")
	}
	home := t.TempDir()
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "helm (.ci/tool helm installs it): %s", &stderr)
	return string(out)
}

// TestPublish publishes the release as a maintainer does, and takes it as users do.
func TestPublish(t *testing.T) {
	outDir(t)
	emptyRegistry()
	private, public, key := keyPair(t)
	said := publishImages(t, private)

	index, err := openLayout(t).Digest()
	require.NoError(t, err)
	_, served, err := get(imageRepository, "manifests", testVersion)
	require.NoError(t, err)
	assert.Equal(t, index.String(), served)
	_, chart, err := get(chartRepository, "manifests", testVersion[1:])
	require.NoError(t, err)

	signed := map[string]string{served: imageRepository, chart: chartRepository}
	for _, img := range images(t) {
		digest, err := img.Digest()
		require.NoError(t, err)
		signed[digest.String()] = imageRepository
	}
	require.Len(t, signed, 4)
	for digest, repository := range signed {
		assert.NoError(t, signedBySpec(repository, digest, &key.PublicKey), digest)
		assert.Regexp(t, `\S+  `+digest+`  signed\n`, said)
	}
	said, err = release(t, "verify-published", outDir(t), "--key", public, "--plain-http")
	require.NoError(t, err)
	assert.Equal(t, 4, strings.Count(said, "  has a good signature\n"), said)

	t.Run("helm", func(t *testing.T) {
		dir := t.TempDir()
		helm(t, "pull", "oci://"+testRegistry+"/meshcni/charts/meshcni", "--version", testVersion[1:], "--plain-http", "--destination", dir)
		pulled := filepath.Join(dir, "meshcni-1.2.3-test.1.tgz")
		text, err := os.ReadFile(pulled)
		require.NoError(t, err)
		released, err := os.ReadFile(filepath.Join(outDir(t), filepath.Base(pulled)))
		require.NoError(t, err)
		assert.True(t, bytes.Equal(released, text), "the chart in the registry is another one")
		images := regexp.MustCompile(`(?m)^ *(?:- )?image: .*$`).FindAllString(helm(t, "template", "meshcni", pulled, "--kube-version", "1.36"), -1)
		require.NotEmpty(t, images)
		for _, image := range images {
			assert.Equal(t, `image: "`+testRegistry+"/meshcni/meshcni@"+served+`"`, strings.TrimLeft(image, " -"))
		}
	})
	t.Run("again", func(t *testing.T) {
		_, before, err := get(imageRepository, "manifests", strings.Replace(served, ":", "-", 1)+".sig")
		require.NoError(t, err)
		publishImages(t, private)
		_, after, err := get(imageRepository, "manifests", strings.Replace(served, ":", "-", 1)+".sig")
		require.NoError(t, err)
		assert.Equal(t, before, after)
	})
	t.Run("by somebody else too", func(t *testing.T) {
		private, _, other := keyPair(t)
		for digest, repository := range signed {
			assert.ErrorContains(t, signedBySpec(repository, digest, &other.PublicKey), "no good signature")
		}
		publishImages(t, private)
		for digest, repository := range signed {
			assert.NoError(t, signedBySpec(repository, digest, &key.PublicKey))
			assert.NoError(t, signedBySpec(repository, digest, &other.PublicKey))
		}
	})
}

// TestKeys: the forms in which openssl and cosign write them.
func TestKeys(t *testing.T) {
	outDir(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalECPrivateKey(key)
	require.NoError(t, err)
	file := writeKey(t, "ec.pem", pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
	emptyRegistry()
	publishImages(t, file)

	password := func(bool) ([]byte, error) { return []byte("secret"), nil }
	encrypted, public, err := cryptoutils.GeneratePEMEncodedECDSAKeyPair(elliptic.P256(), password)
	require.NoError(t, err)
	file = writeKey(t, "cosign.key", encrypted)
	t.Setenv("COSIGN_PASSWORD", "wrong")
	emptyRegistry()
	_, err = release(t, "publish", outDir(t), "--key", file, "--plain-http")
	assert.ErrorContains(t, err, "key "+file)
	_, _, err = get(imageRepository, "manifests", testVersion)
	assert.ErrorContains(t, err, "404", "nothing is pushed that cannot be signed")
	t.Setenv("COSIGN_PASSWORD", "secret")
	publishImages(t, file)
	_, err = release(t, "verify-published", outDir(t), "--key", writeKey(t, "cosign.pub", public), "--plain-http")
	assert.NoError(t, err)
}

// TestPublishedRefused: what somebody could have done to what is in the registry is told, by this program and by the
// specification.
func TestPublishedRefused(t *testing.T) {
	outDir(t)
	index, err := openLayout(t).Digest()
	require.NoError(t, err)
	repository := func(t *testing.T, path string) name.Repository {
		t.Helper()
		r, err := name.NewRepository(testRegistry + path)
		require.NoError(t, err)
		return r
	}
	other, err := random.Image(64, 1)
	require.NoError(t, err)
	private, public, key := keyPair(t)
	for what, tt := range map[string]struct {
		do   func(t *testing.T)
		want string
		// signed: the digest of the release has a good signature all the same.
		signed bool
	}{
		"nothing there": {do: func(*testing.T) { emptyRegistry() }, want: "is missing"},
		"signature gone": {do: func(t *testing.T) {
			r := repository(t, "/meshcni/meshcni")
			require.NoError(t, remote.Delete(r.Tag(strings.Replace(index.String(), ":", "-", 1)+".sig")))
		}, want: "no signature with this key: it is not signed at all"},
		"another key": {do: func(t *testing.T) {
			emptyRegistry()
			wrong, _, _ := keyPair(t)
			publishImages(t, wrong)
		}, want: "no signature with this key"},
		"another image's signature": {do: func(t *testing.T) {
			r := repository(t, "/meshcni/meshcni")
			m, err := openLayout(t).IndexManifest()
			require.NoError(t, err)
			theirs, err := remote.Image(r.Tag(strings.Replace(m.Manifests[0].Digest.String(), ":", "-", 1) + ".sig"))
			require.NoError(t, err)
			require.NoError(t, remote.Write(r.Tag(strings.Replace(index.String(), ":", "-", 1)+".sig"), theirs))
		}, want: "it is of sha256:"},
		"another image": {do: func(t *testing.T) {
			require.NoError(t, remote.Write(repository(t, "/meshcni/meshcni").Tag(testVersion), other))
		}, want: "is another image", signed: true},
		"another chart": {do: func(t *testing.T) {
			require.NoError(t, remote.Write(repository(t, "/meshcni/charts/meshcni").Tag(testVersion[1:]), other))
		}, want: "is not the chart of this release", signed: true},
	} {
		t.Run(what, func(t *testing.T) {
			emptyRegistry()
			publishImages(t, private)
			tt.do(t)
			_, err := release(t, "verify-published", outDir(t), "--key", public, "--plain-http")
			assert.ErrorContains(t, err, tt.want)
			assert.Equal(t, tt.signed, signedBySpec(imageRepository, index.String(), &key.PublicKey) == nil)
			if !tt.signed {
				return
			}
			// What was published before is not replaced either, and nothing is written.
			before := digests(t)
			_, err = release(t, "publish", outDir(t), "--key", private, "--plain-http")
			assert.ErrorContains(t, err, tt.want)
			assert.Equal(t, before, digests(t))
		})
	}
}

// digests are of the names that a release has in the registry.
func digests(t *testing.T) (all [2]string) {
	t.Helper()
	var err error
	_, all[0], err = get(imageRepository, "manifests", testVersion)
	require.NoError(t, err)
	_, all[1], err = get(chartRepository, "manifests", testVersion[1:])
	require.NoError(t, err)
	return all
}

// TestPublishWants: a release that was made for this registry, whole.
func TestPublishWants(t *testing.T) {
	private, _, _ := keyPair(t)
	_, err := release(t, "publish", outDir(t), "--key", private, "--registry", "registry.example.com")
	assert.ErrorContains(t, err, "was made for registry "+testRegistry+", which its chart names, not for registry.example.com")
	_, err = release(t, "verify", outDir(t), "--registry", "registry.example.com")
	assert.ErrorContains(t, err, `it was made for registry "`+testRegistry+`", not for registry.example.com`)
	_, err = release(t, "publish", outDir(t), "--key", os.DevNull)
	assert.ErrorContains(t, err, "key "+os.DevNull)

	altered := filepath.Join(t.TempDir(), "dist")
	require.NoError(t, os.CopyFS(altered, os.DirFS(outDir(t))))
	chart := filepath.Join(altered, "meshcni-1.2.3-test.1.tgz")
	require.NoError(t, os.WriteFile(chart, []byte("another"), 0o600))
	emptyRegistry()
	_, err = release(t, "publish", altered, "--key", private, "--plain-http")
	assert.ErrorContains(t, err, "meshcni-1.2.3-test.1.tgz is not what was released")
	_, _, err = get(imageRepository, "manifests", testVersion)
	assert.ErrorContains(t, err, "404")
}
