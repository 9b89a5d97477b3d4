"""Certificates for servers of tests."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Identity:
    """A key and a certificate for localhost, by `signer` or by itself, good for a day that ended `days_ago`."""

    def __init__(self, signer: Identity | None = None, *, days_ago: int = -1) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        end = datetime.now(UTC) - timedelta(days_ago)
        builder = x509.CertificateBuilder((signer or self).name, self.name, self.key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(end - timedelta(2))
        builder = builder.not_valid_after(end)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        signed = builder.sign((signer or self).key, hashes.SHA256())
        self.pem = signed.public_bytes(serialization.Encoding.PEM).decode()

    def files(self, folder: Path, *others: Identity) -> dict[str, str]:
        """As Jupyter's options name them; `others` stand behind it in its file, as who has signed it does."""
        private = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "key").write_bytes(private)
        (folder / "certificate").write_text("".join(each.pem for each in (self, *others)))
        return {"certfile": str(folder / "certificate"), "keyfile": str(folder / "key")}
