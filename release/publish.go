package main

import (
	"crypto"
	"fmt"
	"os"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/spf13/cobra"

	"github.com/meshcni/meshcni/release/internal/dist"
	"github.com/meshcni/meshcni/release/internal/source"
)

// publish is the command that puts a release into its registry.
func (s *settings) publish() *cobra.Command {
	return s.published("publish [DIR]", "Push the images and the chart of a release, by default the one in --output, and sign them",
		"file with the private key, in PEM; one of cosign's is opened with $COSIGN_PASSWORD",
		func(cmd *cobra.Command, to dist.Registry, dir, key string) error {
			signer, err := signature.LoadSignerVerifierFromPEMFile(key, crypto.SHA256, func(bool) ([]byte, error) {
				return []byte(os.Getenv("COSIGN_PASSWORD")), nil
			})
			if err != nil {
				return fmt.Errorf("key %s: %w", key, err)
			}
			return to.Publish(cmd.Context(), dir, signer, cmd.OutOrStdout())
		})
}

// verifyPublished is the command that looks whether that was done.
func (s *settings) verifyPublished() *cobra.Command {
	return s.published("verify-published [DIR]", "Check that the registry has the images and the chart of a release, and that they are signed",
		"file with the public key, in PEM",
		func(cmd *cobra.Command, at dist.Registry, dir, key string) error {
			verifier, err := signature.LoadVerifierFromPEMFile(key, crypto.SHA256)
			if err != nil {
				return fmt.Errorf("key %s: %w", key, err)
			}
			return at.Verify(cmd.Context(), dir, verifier, cmd.OutOrStdout())
		})
}

// published makes a command of what is done with a release, its registry and a key. Relative paths are from the sources' root.
func (s *settings) published(use, short, keyUsage string, do func(cmd *cobra.Command, r dist.Registry, dir, key string) error) *cobra.Command {
	var key string
	var plainHTTP bool
	cmd := &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			root, err := source.Find(s.source)
			if err != nil {
				return err
			}
			dir := append(args, s.output)[0]
			return do(cmd, dist.Registry{Name: s.Registry, PlainHTTP: plainHTTP}, within(root, dir), within(root, key))
		},
	}
	cmd.Flags().StringVar(&key, "key", "", keyUsage)
	cmd.Flags().BoolVar(&plainHTTP, "plain-http", false, "the registry has no TLS")
	if err := cmd.MarkFlagRequired("key"); err != nil {
		panic(err) // there is no such flag
	}
	return cmd
}
